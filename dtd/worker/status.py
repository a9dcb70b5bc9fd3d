"""A worker's own account: its line in `systemctl status`, and the traffic of its rings."""

from __future__ import annotations

from typing import Any

from dtd.exchange.endpoint import RingEndpoint
from dtd.net.link import NO_TRAFFIC, Traffic
from dtd.wire import messages as m


def status_line(
    beat: m.Heartbeat, assign: m.Assign | None, *, coordinator: str, diagnostic: str = ""
) -> str:
    """Job, step, loss and peers, or the reason for waiting."""
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
    if not beat.step:
        return f"job {beat.job}: runs"
    return f"job {beat.job}: step {beat.step}, loss {beat.loss:.4g}"


def _peers(beat: m.Heartbeat, assign: m.Assign | None) -> list[str]:
    if assign is None or beat.waiting:
        return []
    names = [member.name for member in assign.roster]
    if len(names) == 1:
        return ["alone"]
    before, after = names[assign.rank - 1], names[(assign.rank + 1) % len(names)]
    return [f"rank {assign.rank} of {len(names)} between {before} and {after}"]


class TrafficMeter:
    """Adds up the traffic of rings; belongs to the event loop."""

    def __init__(self) -> None:
        self._ring: RingEndpoint | None = None
        self._before = NO_TRAFFIC

    def heartbeat_fields(self, ring: RingEndpoint | None) -> dict[str, Any]:
        """Return a heartbeat's fields, since the process started; `ring` is the present one."""
        if ring is not self._ring:
            self._before, self._ring = self._total(), ring
        total = self._total()
        return {
            "sent_bytes": total.sent_bytes,
            "plain_bytes": total.plain_bytes,
            "received_bytes": total.received_bytes,
            "rtt_s": total.rtt_s,
            "hop_bytes": total.hop_bytes,
        }

    def _total(self) -> Traffic:
        now = NO_TRAFFIC if self._ring is None else self._ring.traffic()
        return Traffic(
            sent_bytes=self._before.sent_bytes + now.sent_bytes,
            plain_bytes=self._before.plain_bytes + now.plain_bytes,
            received_bytes=self._before.received_bytes + now.received_bytes,
            rtt_s=now.rtt_s,
            hop_bytes=now.hop_bytes or self._before.hop_bytes,
        )
