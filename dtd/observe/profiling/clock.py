"""Offset of a host's clock from the coordinator's, from round trips between them.  Pure.

As NTP does it: a reading is sent at s and back at r by the coordinator's clock, and says t.  The
other clock was read between s and r, so its offset t - (s + r) / 2 is known to half the round trip.
Of several readings the one with the shortest round trip is the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Reading(NamedTuple):
    """One round trip, in seconds.

    Attributes:
        sent_s: when the question left, by the coordinator's clock.
        received_s: when the answer was there, by the same clock.
        theirs_s: time of the other clock.
    """

    sent_s: float
    received_s: float
    theirs_s: float


class Offset(NamedTuple):
    """The offset of another clock from the coordinator's.

    Attributes:
        seconds: negative if it is behind.
        uncertainty_s: the true offset differs by no more than this, if both clocks run evenly.
    """

    seconds: float
    uncertainty_s: float


def offset_of(readings: Sequence[Reading]) -> Offset:
    """Return the offset by the reading that took the least time.

    Args:
        readings: at least one.
    """
    best = min(readings, key=lambda one: one.received_s - one.sent_s)
    half_s = max(0.0, best.received_s - best.sent_s) / 2
    return Offset(best.theirs_s - (best.sent_s + half_s), half_s)
