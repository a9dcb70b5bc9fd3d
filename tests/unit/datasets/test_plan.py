"""Which chunk is asked of which source."""

from __future__ import annotations

from dtd.datasets.plan import Plan


def asked(plan: Plan, source: str, most: int = 100) -> list[int]:
    """Everything that would be asked of a source now."""
    return [chunk for _ in range(most) if (chunk := plan.next(source)) is not None]


def test_the_own_share_is_asked_first_and_others_from_the_end() -> None:
    plan = Plan(7, 0)
    plan.share_out(1, 2)
    plan.holds("all", None)
    assert asked(plan, "all") == [1, 3, 5, 6, 4, 2, 0]


def test_what_is_asked_or_here_is_not_asked_again() -> None:
    plan = Plan(4, 0b1)
    plan.holds("all", None)
    plan.holds("other", None)
    assert asked(plan, "all", 2) == [1, 2]
    plan.received(1)
    assert asked(plan, "other") == [3]
    plan.received(2)
    plan.received(3)
    assert plan.complete


def test_a_partial_source_is_asked_for_what_it_has() -> None:
    plan = Plan(6, 0)
    plan.share_out(0, 2)
    plan.holds("all", None)
    plan.holds("some", 0b000110)
    assert asked(plan, "some") == [1, 2]
    plan.holds("some", 0b001110)
    assert asked(plan, "all", 3) == [0, 4, 5]
    assert asked(plan, "all") == [3]


def test_what_a_lost_source_was_asked_for_is_asked_of_others() -> None:
    plan = Plan(3, 0)
    plan.holds("all", None)
    plan.holds("other", None)
    assert asked(plan, "all") == [0, 1, 2]
    assert asked(plan, "other") == []
    plan.lost("all")
    assert asked(plan, "other") == [0, 1, 2]


def test_a_fetch_without_a_source_of_what_is_missing_stalls() -> None:
    plan = Plan(2, 0)
    assert plan.stalled
    plan.holds("some", 0b1)
    assert not plan.stalled
    plan.received(0)
    assert plan.stalled
    plan.holds("all", None)
    assert not plan.stalled
    plan.received(1)
    assert not plan.stalled
