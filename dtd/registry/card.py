"""A version's model card, as Markdown.  Pure.

The text that people write comes first, the record follows: the training, its data and code, and
its results.  The record is made anew each time from that of the registration, so it cannot be
edited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from dtd.job.differences import settings
from dtd.job.parse import default_settings
from dtd.shown import one_line, shown_bytes

MAX_CARD_CHARACTERS: Final = 16_000
_SPECIAL: Final = "\\`*_{}[]<>#|~"

Version = Mapping[str, Any]


def card(version: Version) -> str:
    """The whole card.

    Args:
        version: as LIST_MODELS describes it.
    """
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
