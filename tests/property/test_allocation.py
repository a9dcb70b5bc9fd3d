"""Numbers of workers of any jobs: within their ranges, all used, and nothing moves twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dtd.cluster.several_jobs.allocation import Claim, plan_moves, shares

FIT = 100


@st.composite
def running(draw: st.DrawFn) -> Claim:
    least = draw(st.integers(1, 5))
    most = draw(st.integers(least, 8))
    has = draw(st.integers(0, most))
    priority = draw(st.integers(-1, 1))
    return Claim(job="", least=least, most=most, priority=priority, has=has, gives=has, fit=FIT)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Claim], int]:
    """Running jobs and a queue, and the workers without a job."""
    drawn = draw(st.lists(running(), max_size=6))
    queue = draw(st.lists(running(), max_size=3))
    waiting = [replace(one, has=0, gives=0, queued=True) for one in queue]
    claims = [replace(one, job=f"j-{n}") for n, one in enumerate([*drawn, *waiting])]
    return claims, draw(st.integers(0, 8))


@given(cases())
def test_numbers_are_within_ranges_and_no_job_is_taken_below_its_least(
    case: tuple[list[Claim], int],
) -> None:
    claims, without = case
    there = sum(one.has for one in claims) + without
    numbers = shares(claims, there)
    assert sum(numbers.values()) <= there
    for one in claims:
        assert numbers[one.job] <= one.most
        assert numbers[one.job] >= min(one.has, one.least)
        assert not one.queued or numbers[one.job] in (0, *range(one.least, one.most + 1))


@given(cases())
def test_a_lower_priority_has_more_than_its_least_only_when_higher_ones_have_their_most(
    case: tuple[list[Claim], int],
) -> None:
    claims, without = case
    numbers = shares(claims, sum(one.has for one in claims) + without)
    short = [
        one
        for one in claims
        if numbers[one.job] < one.most
        and (numbers[one.job] or not one.queued)
        # What an idle worker or another job's surplus can reach.
        and numbers[one.job] < one.has + one.fit
    ]
    for one in short:
        for other in claims:
            if other.priority < one.priority:
                assert numbers[other.job] <= other.least


@given(cases())
def test_once_moved_nothing_moves_again(case: tuple[list[Claim], int]) -> None:
    claims, without = case
    numbers = shares(claims, sum(one.has for one in claims) + without)
    left = sum(one.has for one in claims) + without - sum(numbers.values())
    after = [
        replace(one, has=numbers[one.job], gives=numbers[one.job], queued=not numbers[one.job])
        if one.queued
        else replace(one, has=numbers[one.job], gives=numbers[one.job])
        for one in claims
    ]
    assert plan_moves(after, left) == []


@given(cases())
def test_moves_take_no_more_than_a_job_has_beyond_its_least(
    case: tuple[list[Claim], int],
) -> None:
    claims, without = case
    named = {one.job: one for one in claims}
    for move in plan_moves(claims, without):
        assert move.source != move.to
        assert move.count > 0
    for one in claims:
        taken = sum(move.count for move in plan_moves(claims, without) if move.source == one.job)
        assert not taken or one.has - taken >= named[one.job].least


@given(st.integers(1, 4), st.lists(st.booleans(), min_size=1, max_size=6))
def test_jobs_that_share_evenly_keep_what_they_have(each: int, more: list[bool]) -> None:
    numbers = [each + one for one in more]
    claims = [
        Claim(job=f"j-{n}", least=1, most=8, has=has, gives=has, fit=FIT)
        for n, has in enumerate(numbers)
    ]
    assert plan_moves(claims, 0) == []


@given(cases())
def test_no_job_in_the_queue_overtakes_another(case: tuple[list[Claim], int]) -> None:
    claims, without = case
    numbers = shares(claims, sum(one.has for one in claims) + without)
    begins = [numbers[one.job] > 0 for one in claims if one.queued]
    assert begins == sorted(begins, reverse=True)


@given(cases())
def test_workers_come_from_the_lowest_priority_that_has_some_to_spare(
    case: tuple[list[Claim], int],
) -> None:
    claims, without = case
    numbers = shares(claims, sum(one.has for one in claims) + without)
    spare = {one.job: max(0, one.has - numbers[one.job]) for one in claims}
    priority = {one.job: one.priority for one in claims}
    for move in plan_moves(claims, without):
        lower = [job for job in spare if priority[job] < priority[move.source]]
        assert not any(spare[job] for job in lower)
        spare[move.source] -= move.count
