"""What a worker has sent and received on its rings, one after the other."""

from __future__ import annotations

from typing import Any, Protocol

from dtd.net.traffic import NO_TRAFFIC, Traffic


class Ring(Protocol):
    """A ring that knows its traffic."""

    def traffic(self) -> Traffic:
        """Since it was made."""
        ...


class TrafficMeter:
    """Adds up the traffic of rings; belongs to the event loop."""

    def __init__(self) -> None:
        self._ring: Ring | None = None
        self._before = NO_TRAFFIC

    def heartbeat_fields(self, ring: Ring | None) -> dict[str, Any]:
        """What a heartbeat says, since the process started.

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
