"""Numbers of workers, and moves, of jobs that take some to more."""

from __future__ import annotations

from typing import Any

from dtd.cluster.several_jobs.allocation import Claim, Move, plan_moves, shares, why_no_more


def claim(job: str, least: int, most: int, has: int = 0, **more: Any) -> Claim:
    return Claim(**{"job": job, "least": least, "most": most, "has": has, "gives": has, **more})


def test_equal_jobs_share_evenly_and_the_remainder_stays_where_it_is() -> None:
    one, other = claim("a", 1, 6, has=2), claim("b", 1, 6, has=3)
    assert shares([one, other], 5) == {"a": 2, "b": 3}
    assert plan_moves([one, other], without=0) == []
    assert shares([claim("a", 1, 6, has=4), claim("b", 1, 6, has=1)], 5) == {"a": 3, "b": 2}


def test_ranges_bound_what_is_shared() -> None:
    claims = [claim("a", 1, 2, has=2), claim("b", 3, 4, has=3), claim("c", 1, 9, has=1, fit=8)]
    assert shares(claims, 12) == {"a": 2, "b": 4, "c": 6}


def test_a_higher_priority_takes_others_down_to_their_least() -> None:
    low, high = claim("a", 1, 4, has=4), claim("b", 1, 4, has=1, priority=5)
    assert plan_moves([low, high], without=0) == [
        Move(source="a", to="b", count=3, why="b has priority 5, a 0")
    ]


def test_a_job_that_waits_gets_its_least_and_its_part_at_once() -> None:
    claims = [claim("a", 1, 6, has=6), claim("b", 1, 6, queued=True)]
    assert plan_moves(claims, without=0) == [
        Move(source="a", to="b", count=3, why="b waits for its least, 1 worker")
    ]
    assert plan_moves([claim("a", 1, 6, has=3), claims[1]], without=1, coming=2) == []


def test_a_job_that_waits_gets_its_least_even_from_a_higher_priority() -> None:
    claims = [claim("a", 1, 4, has=4, priority=9), claim("b", 2, 4, queued=True)]
    assert shares(claims, 4) == {"a": 2, "b": 2}


def test_nothing_overtakes_a_job_that_waits_for_more_than_there_is() -> None:
    claims = [claim("a", 2, 3, has=3), claim("b", 3, 3, queued=True), claim("c", 1, 1, queued=True)]
    assert shares(claims, 3) == {"a": 3, "b": 0, "c": 0}
    assert plan_moves(claims, without=0) == []


def test_a_job_below_its_least_comes_first() -> None:
    claims = [claim("a", 1, 4, has=4, priority=1), claim("b", 2, 2, has=1)]
    moves = plan_moves(claims, without=0)
    assert moves == [Move(source="a", to="b", count=1, why="b has 1 of its least, 2 workers")]


def test_what_is_taken_comes_from_the_lowest_priority_then_the_most_then_the_newest() -> None:
    claims = [
        claim("a", 1, 3, has=3, priority=1),
        claim("b", 1, 4, has=2),
        claim("c", 1, 4, has=4),
        claim("d", 1, 4, has=4),
        claim("e", 6, 6, queued=True),
    ]
    moves = plan_moves(claims, without=0)
    assert [(one.source, one.count) for one in moves] == [("d", 3), ("c", 3)]


def test_only_workers_that_could_leave_now_are_moved() -> None:
    claims = [claim("a", 1, 6, has=6, gives=1), claim("b", 1, 6, has=1)]
    assert [one.count for one in plan_moves(claims, without=0)] == [1]


def test_idle_workers_that_a_job_cannot_use_are_not_kept_for_it() -> None:
    claims = [claim("a", 2, 2, has=1, fit=0), claim("b", 1, 1, queued=True)]
    assert shares(claims, 2) == {"a": 1, "b": 1}


def test_why_a_job_has_no_more_is_said() -> None:
    def why(*claims: Claim, workers: int) -> str:
        return why_no_more(claims[0], claims, shares(claims, workers))

    assert why(claim("a", 1, 2, has=2), workers=2) == ""
    assert why(claim("a", 1, 3, has=1), workers=1) == "there are no more workers"
    assert why(claim("a", 1, 3, has=1, fit=2), workers=3) == "2 more workers to come"
    assert why(claim("a", 1, 3, has=1), claim("b", 1, 3, has=1), workers=2) == (
        "shares evenly with b"
    )
    assert why(claim("a", 1, 3, has=1), claim("b", 1, 3, has=1, priority=1), workers=2) == (
        "b has a higher priority"
    )
