"""Refusals in the audit log: bounded, each caller for himself, and counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dtd.limits.refusal_budget import (
    ALL_BURST,
    ALL_EVERY_S,
    BURST,
    EVERY_S,
    MAX_CALLERS,
    RefusalBudget,
)


def test_a_burst_and_then_one_a_minute_which_says_how_many_were_left_out() -> None:
    budget = RefusalBudget()
    assert [budget.spend("a", 0.0) for _ in range(int(BURST))] == [0] * int(BURST)
    assert [budget.spend("a", 1.0) for _ in range(5)] == [None] * 5
    assert budget.spend("a", EVERY_S) == 5
    assert budget.spend("a", EVERY_S) is None


def test_one_caller_does_not_hide_another() -> None:
    budget = RefusalBudget()
    for _ in range(1000):
        budget.spend("stranger", 0.0)
    assert budget.spend("viewer/eve", 0.0) == 0


def test_whoever_was_forgotten_begins_again() -> None:
    budget = RefusalBudget()
    for _ in range(20):
        budget.spend("a", 0.0)
    for number in range(MAX_CALLERS):
        budget.spend(f"other-{number}", 0.0)
    assert budget.spend("a", ALL_EVERY_S * 20) == 0


@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0, 100)), max_size=400))
def test_all_callers_together_have_a_bound(calls: list[tuple[int, float]]) -> None:
    budget, now, entered = RefusalBudget(), 0.0, 0
    for caller, passed_s in calls:
        now += passed_s
        entered += budget.spend(str(caller), now) is not None
    assert entered <= ALL_BURST + now / ALL_EVERY_S + 1


def test_a_clock_that_goes_back_earns_nothing() -> None:
    budget = RefusalBudget()
    for _ in range(int(BURST)):
        budget.spend("a", 1000.0)
    assert budget.spend("a", 0.0) is None
    assert budget.spend("a", 30.0) is None
