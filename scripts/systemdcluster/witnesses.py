"""Reports of systemd and of a host's journal about a unit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from scripts.systemdcluster.host import Host

_PROPERTIES: Final = ("ActiveState", "Result", "NRestarts", "MainPID", "InvocationID", "StatusText")
_MANAGER: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`systemctl show`; `start_id` is another one each time that it is started."""

    active: str
    result: str
    restarts: int
    pid: int
    start_id: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the journal.

    Attributes:
        at_s: when, in Unix time.
        pid: of the process that wrote it.
        by_manager: it was systemd that wrote it.
        text: the line.
        event: the daemon's name of it; empty if it is no event.
        fields: its other fields.
    """

    at_s: float
    pid: int
    by_manager: bool
    text: str
    event: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


def show(host: Host, unit: str) -> Unit:
    """Return systemd's properties of a unit."""
    said = host.run("systemctl", "show", unit, f"--property={','.join(_PROPERTIES)}")
    found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    return Unit(
        active=found["ActiveState"],
        result=found["Result"],
        restarts=int(found["NRestarts"]),
        pid=int(found["MainPID"]),
        start_id=found["InvocationID"],
        status=found["StatusText"],
    )


def journal(host: Host, unit: str, *, since_s: float = 0.0) -> list[Entry]:
    """Return the journal of a unit, and of systemd about it, on all boots, oldest first."""
    options = (
        "--output=json",
        "--no-pager",
        "--quiet",
        f"--unit={unit}",
        f"--since=@{since_s:.6f}",
    )
    return list(_entries(host.run("journalctl", *options)))


def manager_says(entries: list[Entry], pattern: str) -> bool:
    """Whether systemd has written something that matches."""
    return any(entry.by_manager and re.search(pattern, entry.text) for entry in entries)


def _entries(text: str) -> Iterator[Entry]:
    for line in text.splitlines():
        found = json.loads(line)
        message = found.get("MESSAGE")
        if not isinstance(message, str):  # bytes that are no text come as numbers
            message = bytes(message or ()).decode("utf-8", "replace")
        fields = _fields(message)
        yield Entry(
            at_s=int(found["__REALTIME_TIMESTAMP"]) / 1e6,
            pid=int(found.get("_PID", 0)),
            by_manager=found.get("_PID") == _MANAGER,
            text=message,
            event=str(fields.pop("event", "")),
            fields=fields,
        )


def _fields(message: str) -> dict[str, Any]:
    if not message.startswith("{"):
        return {}
    try:
        return dict(json.loads(message))
    except ValueError:
        return {}
