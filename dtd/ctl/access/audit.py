"""`dtdctl audit`: actions, their callers and results; `--verify` checks for completeness.

In JSON every entry is one object on a line of its own.  The chain is verified here, not by the
coordinator: anyone who keeps a copy of the entries, or of one hash, can do the same.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import pages
from dtd.ctl.settings import Settings
from dtd.errors import DtdError, UsageError
from dtd.security.audit import Chain, Verdict
from dtd.wire import messages as m

Entry = Mapping[str, Any]

EXIT_BROKEN: Final = 1
_HEADINGS: Final = ("SEQ", "TIME", "WHO", "FROM", "WHAT", "ABOUT", "OUTCOME", "RESULT")
_AGO: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def show_audit(settings: Settings, *, since: str, who: str, what: str, verifies: bool) -> int:
    """Print the requested entries, oldest first, or verify all of them."""
    if verifies:
        if since or who or what:
            raise UsageError("--verify checks all entries", remedy="use it without other options")
        return _show_verdict(settings)
    asked = m.ReadAudit(since_s=since_s(since, now_s=time.time()), who=who, what=what)
    with settings.connect() as client:
        answers = pages(client.request, lambda after: replace(asked, after=after), "entries")
        seen = [entry for answer in answers for entry in answer["entries"]]
    if settings.as_json:
        for entry in seen:
            output.print_json(entry)
    else:
        output.print_table(_HEADINGS, map(_row, seen))
    return 0


def since_s(text: str, *, now_s: float) -> float:
    """The Unix time that is meant: so long ago ("90m", "2d"), or a date with or without a time.

    Raises:
        UsageError: it is neither.
    """
    if not text:
        return 0.0
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, now_s - int(ago[1]) * _UNIT_S[ago[2]])
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--since: {text!r} is not a time", remedy='write "90m", "2d" or "2026-11-22T14:00"'
        ) from None


def _show_verdict(settings: Settings) -> int:
    chain = Chain()
    after = 0
    with settings.connect() as client:
        while True:
            answer = client.request(m.ReadAudit(after=after))
            _add(chain, answer["entries"])
            after = answer["next"]
            if not answer["entries"]:
                break
    verdict = chain.verdict(answer["newest"])
    _say(settings, verdict)
    return EXIT_BROKEN if verdict.fault else 0


def _add(chain: Chain, entries: Sequence[Entry]) -> None:
    try:
        for entry in entries:
            chain.add(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise DtdError(f"the coordinator's answer is not an audit log: {error!r}") from None


def _say(settings: Settings, verdict: Verdict) -> None:
    if settings.as_json:
        about = {"entries": verdict.entries, "first": verdict.first, "last": verdict.last}
        output.print_json({**about, "hash": verdict.hash, "fault": verdict.fault})
        return
    count = "1 entry" if verdict.entries == 1 else f"{verdict.entries} entries"
    span = f" ({verdict.first} to {verdict.last})" if verdict.entries else ""
    output.print_lines(
        [
            f"{count}{span}: {verdict.fault or 'none is missing or changed'}",
            f"hash of the last entry: {verdict.hash}",
        ]
    )


def _row(entry: Entry) -> tuple[str, ...]:
    why = entry["reason"] or _words(entry["result"])
    more = f" ({entry['skipped']} more refusals before it)" if entry["skipped"] else ""
    return (
        str(entry["seq"]),
        figures.moment(entry["time_s"]),
        f"{entry['role']}/{entry['who']}",
        entry["address"] or figures.NOTHING,
        entry["what"],
        _words(entry["about"]) or figures.NOTHING,
        entry["outcome"],
        f"{why or figures.NOTHING}{more}",
    )


def _words(values: Mapping[str, Any]) -> str:
    """A map in words; a certificate or a name in a list is shown by its content."""
    return " ".join(f"{key}={_word(value)}" for key, value in values.items())


def _word(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_word, value))
    if isinstance(value, dict):
        return "/".join(map(_word, value.values()))
    return str(value)
