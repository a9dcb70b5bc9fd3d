"""Who was turned away: remembered in bounds, and logged now and then."""

from __future__ import annotations

from dtd.coordinator import refusals
from dtd.coordinator.refusals import Refusals


def test_the_same_refusal_is_counted_and_logged_once_a_minute() -> None:
    known = Refusals()
    assert known.note("10.0.0.1", "no credential", 0.0)
    assert not known.note("10.0.0.1", "no credential", 1.0)
    assert known.note("10.0.0.1", "expired", 2.0)
    assert known.note("10.0.0.1", "no credential", refusals.LOG_EVERY_S)
    (expired, lacking) = known.latest()
    assert (expired.reason, expired.count) == ("expired", 1)
    assert (lacking.count, lacking.first_s, lacking.last_s) == (3, 0.0, 60.0)


def test_however_many_hosts_knock_log_and_memory_are_bounded() -> None:
    known = Refusals()
    logged = sum(known.note(f"10.0.{n // 256}.{n % 256}", "why", 0.0) for n in range(1000))
    assert logged == refusals.LOG_BURST
    assert len(known.latest()) == refusals.MAX_REFUSALS
    assert known.latest()[-1].host == "10.0.3.231"
    assert known.note("10.1.0.0", "why", 1.0)
    assert not known.note("10.1.0.1", "why", 1.0)
