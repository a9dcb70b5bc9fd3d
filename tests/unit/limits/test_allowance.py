"""Token buckets: what is there, what is earned, and what a caller waits for."""

from __future__ import annotations

import pytest

from dtd.limits import rates as pacing_module
from dtd.limits.rates import Allowance, Pacing


def test_a_burst_is_there_at_once_and_the_rest_is_earned() -> None:
    allowance = Allowance(rate_per_s=2.0, burst=3.0)
    assert [allowance.takes(1, 100.0) for _ in range(4)] == [True, True, True, False]
    assert not allowance.takes(1, 100.4)
    assert allowance.takes(1, 100.5)
    assert allowance.left(200.0) == 3.0


def test_what_is_spent_beyond_is_owed_and_waited_for() -> None:
    allowance = Allowance(rate_per_s=2.0, burst=1.0)
    assert allowance.wait_s(0.0) == 0.0
    allowance.spend(5, 0.0)
    assert allowance.wait_s(0.0) == 2.0
    assert allowance.wait_s(1.5) == 0.5
    assert allowance.wait_s(2.0) == 0.0


def test_a_clock_that_goes_back_earns_nothing() -> None:
    allowance = Allowance(rate_per_s=1.0, burst=1.0)
    assert allowance.takes(1, 50.0)
    assert not allowance.takes(1, 10.0)
    assert allowance.takes(1, 11.0)


def test_each_caller_waits_for_its_own_rate() -> None:
    pacing = Pacing(rate_per_s=10.0, burst=1.0)
    assert pacing.wait_s("a", 0.0) == 0.0
    assert pacing.wait_s("a", 0.0) == 0.0  # into debt, once
    assert pacing.wait_s("a", 0.0) == pytest.approx(0.1)
    assert pacing.wait_s("b", 0.0) == 0.0
    assert pacing.wait_s("a", 0.1) == pytest.approx(0.0)


def test_a_large_message_is_waited_for_after_it() -> None:
    pacing = Pacing(rate_per_s=10.0, burst=1.0)
    assert pacing.wait_s("a", 0.0, 6) == 0.0
    assert pacing.wait_s("a", 0.0) == pytest.approx(0.5)


def test_callers_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing_module, "MAX_PACED", 2)
    pacing = Pacing(rate_per_s=1.0, burst=1.0)
    for who in "abc":
        pacing.wait_s(who, 0.0, 5)
    assert list(pacing._paced) == ["b", "c"]
