"""Registered models: names of their versions and aliases, and their cards.  Pure.

A model's name and an alias follow the rule for names of jobs.  NAME@3 is its third version,
NAME@production the one that the alias stands for, NAME alone the newest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from dtd.errors import RequestRefused, UsageError
from dtd.job.differences import settings
from dtd.job.parse import default_settings
from dtd.rules import did_you_mean
from dtd.text.names import NAME_WORDS, is_name
from dtd.text.shown import one_line, shown, shown_bytes

MARK: Final = "@"
MAX_COPIES: Final = 16
MOST_OF_A_WORKER: Final = 512
"""Versions that one worker keeps: it names all of them in one message."""
_HASH_CHARACTERS: Final = 12


def parse_reference(text: str) -> tuple[str, str]:
    """Read NAME, NAME@NUMBER or NAME@ALIAS; the second part is empty for the newest version.

    Raises:
        UsageError: it is none of them.
    """
    name, mark, which = text.partition(MARK)
    if not is_name(name) or (mark and not is_name(which)):
        raise UsageError(
            f"{shown(text)} names no model",
            remedy="write NAME, NAME@NUMBER or NAME@ALIAS, for example digits@production",
        )
    return name, which


def check_name(name: str, what: str) -> None:
    """Check the name of a new model or alias."""
    if not is_name(name):
        raise RequestRefused(f"{shown(name)} is not a name of {what}", remedy=f"use {NAME_WORDS}")


def check_alias(alias: str) -> None:
    """Check a new alias: a number would be taken for a version."""
    check_name(alias, "an alias")
    if alias.isdigit():
        raise RequestRefused(
            f"{shown(alias)} would be taken for the number of a version",
            remedy="use a word, for example production",
        )


def resolved(name: str, which: str, numbers: Sequence[int], aliases: Mapping[str, int]) -> int:
    """The number of the version that NAME@WHICH stands for.

    Raises:
        RequestRefused: there is no such version or alias.
    """
    if not which:
        return max(numbers)
    if which.isdigit():
        if int(which) in numbers:
            return int(which)
        raise RequestRefused(
            f"model {name} has no version {which}",
            remedy=f"its versions: {', '.join(map(str, sorted(numbers)))}",
        )
    if which in aliases:
        return aliases[which]
    raise RequestRefused(
        f"model {name} has no alias {shown(which)}{did_you_mean(which, aliases)}",
        remedy=f"set it with: dtdctl models alias {name}@{which} VERSION",
    )


def version_id(store_id: str, registered_ns: int, name: str, number: int) -> str:
    """Return a version's id on workers: the same number, given again, has another id."""
    text = f"{store_id}.{registered_ns}.{name}.{number}"
    return f"{name}.v{number}.{hashlib.blake2b(text.encode()).hexdigest()[:_HASH_CHARACTERS]}"


# --- a version's card, as Markdown ---------------------------------------------------------------
#
# The text that people write comes first, the record follows: the training, its data and code, and
# its results.  The record is made anew each time from that of the registration, so it cannot be
# edited.


MAX_CARD_CHARACTERS: Final = 16_000
_SPECIAL: Final = "\\`*_{}[]<>#|~"

Version = Mapping[str, Any]


def card(version: Version) -> str:
    """The whole card of a version as LIST_MODELS describes it."""
    text = str(version["card"]).strip() or "No description has been written yet."
    return "\n".join([f"# {_title(version)}", "", text, "", *_record(version)]) + "\n"


def _title(version: Version) -> str:
    aliases = f" ({', '.join(version['aliases'])})" if version["aliases"] else ""
    return plain(f"{version['name']}, version {version['number']}{aliases}")


def _record(version: Version) -> Iterator[str]:
    record = version["record"]
    yield from ("## Record", "", "| | |", "|---|---|")
    for label, value in _rows(version, record):
        yield f"| {label} | {plain(str(value))} |"
    if record["metrics"]:
        yield from ("", "## Evaluation", "", "| metric | value |", "|---|---|")
        for name, value in record["metrics"].items():
            yield f"| {plain(name)} | {'not finite' if value is None else f'{value:.6g}'} |"
    yield from ("", "## Settings that are not the default", "", "| setting | value |", "|---|---|")
    usual = default_settings()
    for key, value in settings(record["spec"]).items():
        if key not in usual or usual[key] != value:
            yield f"| {plain(key)} | {plain(str(value))} |"


def _rows(version: Version, record: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "registered", f"{_moment(record['registered_s'])} by {record['registered_by']}"
    yield "job", f"{record['job']}, step {record['step']}, generation {record['generation']}"
    yield "task", record["task"]
    yield "state digest", f"{record['digest'] or 'none'} ({record['confirmation']})"
    for file in version["files"]:
        yield file["name"], f"sha256 {file['sha256']}, {shown_bytes(file['size_bytes'])}"
    yield "data", f"{record['dataset_rows']} rows, fingerprint {record['dataset_fingerprint']}"
    yield "code package", record["package"] or "none: built in, or installed on the workers"
    yield from record["environment"].items()


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def plain(text: str) -> str:
    """A text of others that Markdown shows as it is, on one line."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in one_line(text))
