"""Shares of any batch among ranks of any speed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.shares import DECIDE_EVERY_STEPS, UNKNOWN, Pace, decide, divided, starts

costs_of_ranks = st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=12).map(tuple)
batches = st.integers(0, 5000)
leasts = st.integers(1, 8)


@given(rows=batches, costs=costs_of_ranks, least=leasts)
def test_all_rows_are_divided_and_the_faster_have_more(rows, costs, least) -> None:
    counts = divided(rows, costs, least)
    assert sum(counts) == rows
    assert all(isinstance(count, int) and count >= 0 for count in counts)
    if rows >= least * len(costs):
        assert min(counts) >= least
        ordered = [count for _, count in sorted(zip(costs, counts, strict=True))]
        by_cost = sorted(zip(costs, counts, strict=True), key=lambda one: (one[0], -one[1]))
        assert [count for _, count in by_cost] == sorted(ordered, reverse=True)
    else:
        assert max(counts) - min(counts) <= 1
    bounds = starts(rows, costs, least)
    assert [stop - start for start, stop in pairwise(bounds)] == list(counts)


@given(rows=st.integers(24, 400), costs=st.lists(st.integers(100, 10_000), min_size=2, max_size=6))
def test_no_move_of_one_row_makes_a_step_shorter(rows, costs) -> None:
    counts = list(divided(rows, tuple(costs), 1))
    longest = max(n * cost for n, cost in zip(counts, costs, strict=True))
    slowest = max(range(len(costs)), key=lambda rank: counts[rank] * costs[rank])
    for other, cost in enumerate(costs):
        if other != slowest and counts[slowest] > 1:
            assert (counts[other] + 1) * cost >= longest or counts[other] * cost == longest


@given(
    rows=st.integers(1, 5000),
    told=st.lists(st.integers(0, 10**12), min_size=1, max_size=9),
    later=st.lists(st.integers(0, 10**12), min_size=9, max_size=9),
    least=leasts,
)
def test_a_decision_follows_from_what_was_told_and_stays_without_news(
    rows, told, later, least
) -> None:
    first = decide((), told, rows=rows, least=least)
    assert first == decide((), told, rows=rows, least=least)
    assert bool(first.reason) == (first.costs != ())
    again = decide(first.costs, told, rows=rows, least=least)
    assert again.costs == first.costs, "the same news change nothing twice"
    then = decide(first.costs, later[: len(told)], rows=rows, least=least)
    assert len(then.costs) in (0, len(told))
    assert UNKNOWN not in then.costs


def test_small_differences_move_no_rows_and_a_joiner_counts_as_usual() -> None:
    assert not decide((), [100, 104, 100, 100], rows=64, least=2).reason
    joined = decide((), [100, 200, UNKNOWN, 100], rows=70, least=2)
    assert divided(70, joined.costs, 2) == (20, 10, 20, 20)
    assert not decide((), [UNKNOWN] * 4, rows=64, least=2).reason


@given(
    fixed_ns=st.lists(st.integers(0, 10**7), min_size=2, max_size=5),
    row_ns=st.lists(st.integers(10**5, 10**7), min_size=5, max_size=5),
)
def test_times_of_steps_approach_one_another_also_with_a_part_that_no_row_takes(
    fixed_ns, row_ns
) -> None:
    """A rank needs a + b n; the slowest is hardly above the mean of all after some decisions."""
    ranks, rows, costs = range(len(fixed_ns)), 6000, ()

    def times() -> list[int]:
        counts = divided(rows, costs or (1,) * len(fixed_ns), 2)
        return [fixed_ns[rank] + row_ns[rank] * counts[rank] for rank in ranks]

    for _ in range(20):
        counts = divided(rows, costs or (1,) * len(fixed_ns), 2)
        told = [time // count for time, count in zip(times(), counts, strict=True)]
        costs = decide(costs, told, rows=rows, least=2).costs
    assert max(times()) * 0.89 <= sum(times()) / len(fixed_ns) + max(row_ns)


def test_a_pace_is_a_median_that_a_single_pause_does_not_move() -> None:
    pace = Pace()
    for own_s in (9.0, 0.4, 0.4, 7.0, 0.4):
        pace.add(own_s, rows=4, steps=1)
    assert pace.cost == 100_000_000
    pace.restart()
    assert pace.cost == UNKNOWN
    pace.add(9.0, rows=4, steps=1)
    pace.add(0.8, rows=4, steps=100)
    assert pace.cost == 200_000_000
    for _ in range(DECIDE_EVERY_STEPS):
        pace.add(0.0, rows=0, steps=1)
    assert pace.cost == 200_000_000, "a step that was not measured tells nothing"
