"""The least that a step can take over links of a known speed.

A bucket travels when it is full and the one before it has arrived, and no faster than the raw
sockets of the probe carry as many bytes.  Whoever waits for the last bucket and then updates the
weights can be no quicker: what a synchronisation takes beyond that is its own.
"""

from __future__ import annotations

from collections.abc import Sequence


def shaped_floor_s(ready_s: Sequence[float], wire_s: Sequence[float], optimizer_s: float) -> float:
    """Seconds from the begin of a step to its end.

    Args:
        ready_s: when each bucket is full, from the begin of the step, in the order of travel.
        wire_s: how long each bucket takes on the wire by itself.
        optimizer_s: the update that follows the last one.
    """
    end_s = 0.0
    for ready, wire in zip(ready_s, wire_s, strict=True):
        end_s = max(end_s, ready) + wire
    return end_s + optimizer_s
