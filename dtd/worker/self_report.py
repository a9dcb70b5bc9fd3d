"""A worker's reports about itself: its status line, its traffic, and the memory it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Protocol

from dtd.net.link import NO_TRAFFIC, Traffic
from dtd.wire import messages as m

# --- status, in the one line that `systemctl status` shows -------------------------------------


def status_line(
    beat: m.Heartbeat, assign: m.Assign | None, *, coordinator: str, diagnostic: str = ""
) -> str:
    """Job, step, loss and peers, or the reason for waiting.

    Args:
        beat: the present heartbeat.
        assign: the newest generation of this process.
        coordinator: its address while it cannot be reached, else empty.
        diagnostic: the trouble and its remedy; empty when there is none.
    """
    words = [_doing(beat), *_peers(beat, assign)]
    if coordinator and not diagnostic:
        words.append(f"connecting to the coordinator at {coordinator}")
    line = ", ".join(words)
    return f"{line}; {diagnostic}" if diagnostic else line


def _doing(beat: m.Heartbeat) -> str:
    if not beat.job:
        return beat.waiting
    if beat.waiting:
        return f"job {beat.job}: {beat.waiting}"
    return f"job {beat.job}: step {beat.step}, loss {beat.loss:.4g}"


def _peers(beat: m.Heartbeat, assign: m.Assign | None) -> list[str]:
    if assign is None or beat.waiting:
        return []
    names = [member.name for member in assign.roster]
    if len(names) == 1:
        return ["alone"]
    before, after = names[assign.rank - 1], names[(assign.rank + 1) % len(names)]
    return [f"rank {assign.rank} of {len(names)} between {before} and {after}"]


# --- traffic of its rings, one after the other ---------------------------------------------------


class Ring(Protocol):
    """A ring that counts its traffic."""

    def traffic(self) -> Traffic:
        """Since it was made."""
        ...


class TrafficMeter:
    """Adds up the traffic of rings; belongs to the event loop."""

    def __init__(self) -> None:
        self._ring: Ring | None = None
        self._before = NO_TRAFFIC

    def heartbeat_fields(self, ring: Ring | None) -> dict[str, Any]:
        """Return the fields of a heartbeat, since the process started.

        Args:
            ring: the present one.
        """
        if ring is not self._ring:
            self._before, self._ring = self._total(), ring
        total = self._total()
        return {
            "sent_bytes": total.sent_bytes,
            "received_bytes": total.received_bytes,
            "rtt_s": total.rtt_s,
        }

    def _total(self) -> Traffic:
        now = NO_TRAFFIC if self._ring is None else self._ring.traffic()
        return Traffic(
            sent_bytes=self._before.sent_bytes + now.sent_bytes,
            received_bytes=self._before.received_bytes + now.received_bytes,
            rtt_s=now.rtt_s,
        )


# --- memory, from the kernel ---------------------------------------------------------------------


_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident set size in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
