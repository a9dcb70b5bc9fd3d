"""Who was rejected: logged now and then, and remembered in bounds."""

from __future__ import annotations

from dtd.coordinator import throttles as refusals
from dtd.coordinator.throttles import Refusals


def test_the_same_refusal_is_counted_and_logged_once_a_minute() -> None:
    known = Refusals()
    assert known.note("10.0.0.1", "no credential", 0.0)
    assert not known.note("10.0.0.1", "no credential", 1.0)
    assert known.note("10.0.0.1", "expired", 2.0)
    assert known.note("10.0.0.1", "no credential", refusals.LOG_EVERY_S)
    assert not known.note("10.0.0.1", "no credential", 2 * refusals.LOG_EVERY_S - 1.0)
    assert not known.note("10.0.0.1", "expired", refusals.LOG_EVERY_S + 1.0)
    assert known.note("10.0.0.1", "expired", refusals.LOG_EVERY_S + 2.0)


def test_however_many_hosts_knock_log_and_memory_are_bounded() -> None:
    known = Refusals()
    logged = sum(known.note(f"10.0.{n // 256}.{n % 256}", "why", 0.0) for n in range(1000))
    assert logged == refusals.LOG_BURST
    assert len(known._logged_s) == refusals.MAX_REFUSALS
    assert [*known._logged_s][-1] == ("10.0.3.231", "why")
    assert known.note("10.1.0.0", "why", 1.0)
    assert not known.note("10.1.0.1", "why", 1.0)
