from typing import Any

import pytest

from dtd.cluster.records import Job
from dtd.cluster.state import least_workers, most_workers
from dtd.cluster.transitions import GenerationState, JobState, WorkerState
from dtd.wire import messages as m


def a_job(**elastic: Any) -> Job:
    return Job(id="j", spec={"job": {"name": "n"}, "elastic": elastic})


def test_a_job_has_the_name_that_the_user_gave() -> None:
    assert a_job().name == "n"


def test_limits_come_from_the_job_within_what_a_roster_can_hold() -> None:
    assert least_workers(a_job(min_workers=3)) == 3
    assert most_workers(a_job(max_workers=3)) == 3
    assert most_workers(a_job(max_workers=1000)) == m.MAX_WORLD


def break_roster(desk: Any) -> None:
    desk.cluster.run.roster.append("a")


def break_membership(desk: Any) -> None:
    desk.cluster.workers["a"].state = WorkerState.READY


def break_ending(desk: Any) -> None:
    desk.cluster.run.phase = GenerationState.ENDING
    desk.cluster.run.roster = []


def break_job(desk: Any) -> None:
    desk.cluster.job = None


def break_ended(desk: Any) -> None:
    desk.cluster.job.state = JobState.DONE


def break_warming(desk: Any) -> None:
    desk.cluster.warming_since["a"] = 0.0


@pytest.mark.parametrize(
    "damage",
    [break_roster, break_membership, break_ending, break_job, break_ended, break_warming],
)
def test_books_that_do_not_balance_are_noticed(desk: Any, damage: Any) -> None:
    desk.submit()
    desk.run_generation("a")
    desk.core.check_invariants()
    damage(desk)
    with pytest.raises(AssertionError):
        desk.core.check_invariants()
