"""Memory lost after an error of the membership's own, and jobs that no worker can be sent."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import Submitted, Undeliverable
from dtd.cluster.state import ClusterState
from dtd.cluster.transitions import GenerationState, JobState


def test_all_but_what_was_given_out_is_forgotten(driver: Any) -> None:
    job = driver.submit()
    number = driver.run_generation("a", "b")
    (left,) = driver.core.begin_again(given_up=False)
    assert left is job
    cluster: ClusterState = driver.cluster
    assert (cluster.job, cluster.workers, cluster.run.roster) == (None, {}, [])
    assert cluster.run.highest == number
    driver.core.check_invariants()
    driver.handle(Submitted(job=left))
    assert (cluster.run.phase, cluster.run.roster) == (GenerationState.RUNNING, ["a", "b"])
    assert driver.state("a") == "away"


def test_a_job_that_is_given_up_has_failed_and_the_next_one_is_left(driver: Any) -> None:
    job, other = driver.submit(), driver.submit("j-2")
    assert driver.core.begin_again(given_up=True) == [other]
    assert (job.state, other.state) == (JobState.FAILED, JobState.QUEUED)
    assert "internal_error" in job.reason


def test_without_a_job_there_is_nothing_to_give_up(driver: Any) -> None:
    assert driver.core.begin_again(given_up=True) == []


@pytest.mark.parametrize("runs", [False, True])
def test_a_job_that_nobody_can_be_told_of_fails_and_says_why(driver: Any, runs: bool) -> None:
    job = driver.submit()
    if runs:
        driver.run_generation("b")
    driver.handle(Undeliverable(job="j-0", reason="another job's"))
    assert job.verdict == ""
    driver.handle(Undeliverable(job="j-1", reason="header of 70000 bytes > 65536"))
    driver.handle(Undeliverable(job="j-1", reason="again"))
    if runs:
        assert driver.cluster.run.phase is GenerationState.ENDING
        driver.froze("b", generation=driver.cluster.run.generation, step=0)
    assert (job.state, job.reason) == (JobState.FAILED, "header of 70000 bytes > 65536")
