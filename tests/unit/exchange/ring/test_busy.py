"""For how long something was in flight."""

from __future__ import annotations

from dtd.exchange.ring.busy import BusyTime


def test_what_overlaps_counts_once_and_what_is_under_way_not_yet() -> None:
    busy = BusyTime()
    busy.begin(1.0)
    busy.begin(2.0)
    busy.end(3.0)
    assert busy.busy_s == 0.0
    busy.end(5.0)
    busy.begin(7.0)
    busy.end(7.5)
    assert busy.busy_s == 4.5
