"""The daemons' JSON logs, read while they grow: one stream of lines with times of one clock."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a daemon's log.

    Attributes:
        daemon: whose.
        at_s: when it was written (seconds since the epoch).
        event: the constant name.
        fields: everything else.
    """

    daemon: str
    at_s: float
    event: str
    fields: Mapping[str, Any]


class LogTail:
    """Reads what is new in some logs.

    Args:
        paths: the logs, by daemon; they exist.

    Attributes:
        unread: lines that are no JSON, by daemon: tracebacks and what libraries print.
    """

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._files = {name: os.open(path, os.O_RDONLY) for name, path in paths.items()}
        self._rests = dict.fromkeys(paths, b"")
        self.unread: list[tuple[str, str]] = []

    def poll(self) -> list[Line]:
        """Lines that were completed since the last time, oldest first."""
        found: list[Line] = []
        for name, file in self._files.items():
            while piece := os.read(file, 1 << 20):
                *whole, self._rests[name] = (self._rests[name] + piece).split(b"\n")
                found += [line for text in whole if (line := self._line(name, text)) is not None]
        return sorted(found, key=lambda line: line.at_s)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            os.close(file)

    def _line(self, name: str, text: bytes) -> Line | None:
        try:
            fields = json.loads(text)
            at_s = datetime.fromisoformat(fields.pop("ts")).timestamp()
            return Line(daemon=name, at_s=at_s, event=fields.pop("event"), fields=fields)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.unread.append((name, text.decode(errors="replace")))
            return None
