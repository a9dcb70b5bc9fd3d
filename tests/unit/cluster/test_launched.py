"""A job that launches a script: no step and no state of it is known."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.events import CancelRequested
from dtd.cluster.machine import MAX_DEADLY_GENERATIONS
from dtd.cluster.state import FRUITFUL_S
from dtd.cluster.transitions import JobState
from dtd.wire import messages as m

NO_STEPS = {"steps_total": 0, "dataset_rows": 0}
NOTHING = (m.Held(job="j-1", generation=0, step=0, digest="", where="memory"),)


@pytest.fixture
def job(driver: Any) -> Any:
    """It runs on a and b."""
    made = driver.submit(task="train:__launch__", min_workers=2)
    for name in ("a", "b"):
        driver.register(name)
    for name in ("a", "b"):
        driver.warmed(name, held=NOTHING, **NO_STEPS)
    driver.all_run("a", "b")
    assert made.state is JobState.RUNNING
    return made


def die(driver: Any) -> None:
    """B dies, and comes back."""
    incarnation = driver.cluster.workers["b"].incarnation
    driver.lost("b", incarnation=incarnation)
    driver.froze("a", generation=driver.cluster.run.generation, step=0)
    driver.register("b", incarnation=incarnation + 1)
    driver.warmed("b", held=NOTHING, **NO_STEPS)
    driver.tick(driver.now + 10.0)
    driver.all_run("a", "b")


def test_deaths_in_a_row_fail_it(driver: Any, job: Any) -> None:
    for _ in range(MAX_DEADLY_GENERATIONS):
        assert job.state is JobState.RUNNING
        die(driver)
    assert job.state is JobState.FAILED
    assert job.reason == "the script kills worker after worker: b died or hung in it"


def test_deaths_after_long_runs_do_not(driver: Any, job: Any) -> None:
    for _ in range(2 * MAX_DEADLY_GENERATIONS):
        driver.tick(driver.now + FRUITFUL_S)
        die(driver)
        assert job.state is JobState.RUNNING


def test_it_has_recovered_when_it_runs_again(driver: Any, job: Any) -> None:
    die(driver)
    (told,) = driver.told_of("recovered")
    assert (told.worker, told.job) == ("b", job.id)
    assert told.details["steps_redone"] == 0


def test_one_error_fails_it_on_all_workers(driver: Any, job: Any) -> None:
    driver.say("b", m.Failed(job="j-1", reason="exit code 3", traceback="last words", step=0))
    for name in ("a", "b"):
        driver.froze(name, generation=driver.cluster.run.generation, step=0)
    assert (job.state, job.reason) == (JobState.FAILED, "b: exit code 3")
    assert job.result["traceback"] == "last words"


@pytest.mark.parametrize("cancelled", [False, True])
def test_it_ends_without_a_checkpoint(driver: Any, job: Any, cancelled: bool) -> None:
    if cancelled:
        driver.handle(CancelRequested(job="j-1"))
    for name in ("a", "b"):
        driver.finished(name, generation=job.generation, step=0, held_generation=0, saved=False)
    assert job.state is (JobState.CANCELLED if cancelled else JobState.DONE)
    assert driver.told("a", m.Save) == []
