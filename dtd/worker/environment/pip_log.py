"""The output of a pip that could not make a job's environment: its meaning and a remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from dtd.errors import TaskError
from dtd.text.shown import cut, one_line

_LOG_BYTES: Final = 64 * 1024
_CREDENTIAL: Final = re.compile(r"//[^/@\s]+@")
INDEX_REMEDY: Final = (
    "see that /etc/pip.conf or PIP_INDEX_URL in /etc/dtd/worker.env names an index that the host"
    " reaches, or install the packages in the worker's own environment"
)
_REASONS: Final = (
    (
        "No space left on device",
        "the disk is full",
        "free space in the worker's state directory",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "a file of the host's index does not have the hash that the job requires",
        "write the lock file anew, or have the index deliver the same files",
    ),
    (
        "The user requested (constraint)",
        "they need another version of what the worker has itself, and a job replaces nothing of it",
        "require what the workers have, or upgrade that in the workers' own environment",
    ),
    ("Retrying (", "the host's package index does not answer", INDEX_REMEDY),
    (
        "No matching distribution found",
        "the host's package index does not have them, or none for this Python and processor",
        INDEX_REMEDY,
    ),
)
"""Words that pip prints, their meaning, and a remedy; the first that fits counts."""
_HINTS: Final = "To fix this you could try"
"""How pip's own advice begins."""


def last_line(log: Path) -> str:
    """The last line that was printed, in words."""
    lines = [line.strip() for line in _printed(log).splitlines() if line.strip()]
    return f"its last line: {one_line(lines[-1])}" if lines else "it has printed nothing"


def failure(log: Path) -> TaskError:
    """The error for an installation that has failed."""
    printed = _printed(log)
    _, error, said = printed.partition("ERROR: ")
    said = " ".join(said.partition(_HINTS)[0].split()) if error else last_line(log)
    looks = next((line for line in printed.splitlines() if line.startswith("Looking in ")), "")
    said = f"{said} ({looks})" if looks else said
    for words, meaning, remedy in _REASONS:
        if words in printed:
            return TaskError(cut(f"requirements: {meaning}: {said}"), remedy=remedy)
    return TaskError(
        cut(f"requirements: pip has failed: {said}"),
        remedy="try the same with pip in the worker's own environment, on that host",
    )


def _printed(log: Path) -> str:
    """The end of the log, without passwords."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
        text = file.read().decode("utf-8", "replace")
    return _CREDENTIAL.sub("//", text)
