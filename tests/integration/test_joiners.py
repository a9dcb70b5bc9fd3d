"""A worker that fails at its first step or load after joining harms nobody but itself."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.integration.conftest import PATIENCE_S, Daemons, Gates

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "joined"
task = "joiner_task:{task}"
steps = {steps}
global_batch_size = {rows}
seed = 3
[train]
digest_every = 1
[elastic]
settle_s = 0.0
"""
HOLD = 30
"""The step in which the old members wait for the joiner."""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and three workers."""
    return start_daemons(3)


def begin(daemons: Daemons, task: str, *overrides: str, rows: int) -> tuple[str, Gates]:
    """A job of two workers that waits in a step; the third one is gone."""
    daemons.await_idle()
    gone = daemons.child("worker-2")
    gone.signal_group(signal.SIGKILL)
    gone.wait(PATIENCE_S)
    daemons.await_event("worker_lost", containing="worker-2")
    gates = daemons.hold(HOLD)
    text = JOB.format(task=task, steps=60, rows=rows)
    job = daemons.submit(*overrides, text=text, gates=gates)
    daemons.await_event("generation_running", job=job)
    return job, gates


def join(daemons: Daemons, gates: Gates) -> None:
    """The third worker starts, and joins with the next step."""
    daemons.start_worker("worker-2")
    daemons.await_event("generation_ending", containing="worker-2 joins")
    gates.open(0)


def test_a_joiner_that_makes_slices_too_small_is_set_aside(daemons: Daemons) -> None:
    """Four rows are two for each of two workers, and one each for two of three."""
    job, gates = begin(daemons, "SmallSlices", rows=4)
    join(daemons, gates)
    told = daemons.await_event("worker_set_aside", containing="worker-2")
    assert "since it joined, worker-" in told["message"]
    assert "one row has nothing to be compared with" in told["message"]
    assert "in loss" in told["details"]["traceback"]
    answer = daemons.wait(job)
    assert (answer["state"], answer["reason"]) == ("done", "")
    assert {"worker-0", "worker-1"} <= answer["result"]["replica_digests"].keys()
    assert answer["result"]["rows_missing"] == answer["result"]["rows_repeated"] == 0


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("OtherSchedule", "the state has a schedule of the task"),
        ("Forgetful", "ranks [2] hold another state than the others"),
    ],
)
def test_a_joiner_that_cannot_hold_the_state_is_set_aside(
    daemons: Daemons, task: str, why: str
) -> None:
    mark = daemons.directory / task
    job, gates = begin(daemons, task, f"task.mark={str(mark)!r}", rows=12)
    mark.touch()
    join(daemons, gates)
    told = daemons.await_event("worker_set_aside", containing="worker-2")
    assert why in told["message"]
    answer = daemons.wait(job)
    assert (answer["state"], answer["reason"]) == ("done", "")
    assert {"worker-0", "worker-1"} <= answer["result"]["replica_digests"].keys()


def test_all_of_the_state_is_copied_whatever_a_model_saves(daemons: Daemons) -> None:
    job, gates = begin(daemons, "OwnStateDict", rows=12)
    join(daemons, gates)
    answer = daemons.wait(job)
    assert (answer["state"], answer["reason"]) == ("done", "")
    digests = answer["result"]["replica_digests"]
    assert len(digests) == 3
    assert len(set(digests.values())) == 1
    assert not daemons.events("replicas_diverged", job)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("LateMask", "the buffer mask was not there"),
        ("ExtraState", "the extra state of the module 1 (get_extra_state()) changes in loss()"),
        ("NeverAlike", "replicas differ again after step 0"),
    ],
)
def test_what_no_worker_could_join_fails_at_once_by_name(
    daemons: Daemons, task: str, why: str
) -> None:
    gates = daemons.hold(HOLD)
    gates.open(0)
    text = JOB.format(task=task, steps=60, rows=12)
    job = daemons.submit("elastic.min_workers=3", text=text, gates=gates)
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert why in answer["reason"]
    if task == "NeverAlike":  # one that ends first may cut off the others' search for the entry
        told = " ".join(one["message"] for one in daemons.events("replicas_diverged", job))
        assert "what differs first is task of what the task keeps itself" in told
    assert not daemons.events("steps_lost", job)
