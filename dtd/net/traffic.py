"""What has crossed a worker's two ring links."""

from __future__ import annotations

from typing import Final, NamedTuple

from dtd.net.link import Link


class Traffic(NamedTuple):
    """What has crossed a worker's two ring links.

    Attributes:
        sent_bytes: payload bytes to the next rank; what it is lent does not cross the link.
        received_bytes: all bytes from the previous rank.
        rtt_s: round-trip time to the next rank; 0 when there is no link.
    """

    sent_bytes: int
    received_bytes: int
    rtt_s: float


NO_TRAFFIC: Final = Traffic(sent_bytes=0, received_bytes=0, rtt_s=0.0)


def traffic_of(to_next: Link | None, from_previous: Link | None) -> Traffic:
    """The traffic of two links; None for one that does not stand yet."""
    return Traffic(
        sent_bytes=0 if to_next is None else to_next.sent_bytes,
        received_bytes=0 if from_previous is None else from_previous.received_bytes,
        rtt_s=0.0 if to_next is None else to_next.round_trip_s(),
    )
