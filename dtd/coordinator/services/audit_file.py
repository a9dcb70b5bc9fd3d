"""The audit log on disk: one JSON object a line, only ever appended, in files of bounded size.

    audit/0000000000000000.jsonl  audit/0000000008388700.jsonl  ...

A file is named by its place in the whole log, in bytes, so an entry is known by its own place
(`seq`), and a reader goes on from there.  The oldest file goes when there are too many.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from dtd.coordinator.store.tables import page
from dtd.host.durable import make_directory, sync_directory

DIRECTORY: Final = "audit"
FILE_BYTES: Final = 8 * 1024 * 1024
"""Size at which a file ends, and the next one begins."""
MAX_FILES: Final = 8
PAGE_ENTRIES: Final = 200

BEGUN: Final = "begun"
DONE: Final = "done"
REFUSED: Final = "refused"
FAILED: Final = "failed"
CUT: Final = "cut"
"""Outcomes; "cut": the caller disconnected before the answer, and the call may have been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One call: the caller, the request and its outcome.

    Attributes:
        skipped: earlier refusals of the same caller that were not recorded.
    """

    time_s: float
    role: str
    who: str
    serial: str = ""
    address: str = ""
    what: str
    about: Mapping[str, Any] = field(default_factory=dict)
    outcome: str
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    skipped: int = 0


class AuditFile:
    """The log of one state directory, with one writer; blocking.

    Args:
        state_dir: must exist; the log's own directory is made with the first entry.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / DIRECTORY

    def add(self, entry: Entry, *, synced: bool) -> int:
        """Append an entry; with `synced` it survives the loss of power.

        Raises:
            OSError: it cannot be written, and nothing of it was.
        """
        line = json.dumps(dataclasses.asdict(entry)).encode() + b"\n"
        make_directory(self._directory, mode=0o700)
        path = self._current()
        is_new = not path.exists()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            at = _append(descriptor, line)
            if synced:
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self._directory)
        return _base(path) + at + 1

    def page(
        self, after: int, since_s: float = 0.0, who: str = "", what: str = ""
    ) -> dict[str, Any]:
        """The entries after a number, as many as a page holds, and the number to go on from.

        Args:
            after: the number.
            since_s: not before this Unix time.
            who: only of this name, serial or ROLE/NAME; empty: all.
            what: only requests with this in their name, in any case.
        """
        found = (
            one
            for one in self._entries(after)
            if one["time_s"] >= since_s
            and who in ("", one["who"], one["serial"], f"{one['role']}/{one['who']}")
            and what.upper() in one["what"]
        )
        entries = page(islice(found, PAGE_ENTRIES))
        return {"entries": entries, "next": entries[-1]["seq"] if entries else after}

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("[0-9]*.jsonl"))

    def _current(self) -> Path:
        """The file that takes the next entry; the oldest make room for a new one."""
        files = self._files()
        if not files:
            return self._directory / _leaf(0)
        size = files[-1].stat().st_size
        if size < FILE_BYTES:
            return files[-1]
        for old in files[: len(files) + 1 - MAX_FILES]:
            old.unlink()
        return self._directory / _leaf(_base(files[-1]) + size)

    def _entries(self, after: int) -> Iterator[dict[str, Any]]:
        """Entries with a higher number; a line that the loss of power has cut is left out."""
        for path in self._files():
            base = _base(path)
            if base + path.stat().st_size <= after:
                continue
            with path.open("rb") as file:
                at = file.seek(max(0, after - 1 - base))
                for line in file:
                    seq, at = base + at + 1, at + len(line)
                    if seq > after and (entry := _parsed(line)):
                        yield {"seq": seq, **entry}


def _append(descriptor: int, line: bytes) -> int:
    """Write a line whole or not at all; returns its place in the file."""
    before = os.fstat(descriptor).st_size
    if before and os.pread(descriptor, 1, before - 1) != b"\n":  # a loss of power has cut the last
        os.write(descriptor, b"\n")
        before += 1
    try:
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, before)
        raise
    return before


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _leaf(base: int) -> str:
    return f"{base:016d}.jsonl"


def _base(path: Path) -> int:
    return int(path.stem)
