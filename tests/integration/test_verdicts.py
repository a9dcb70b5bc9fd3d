"""What becomes of a job when something is wrong with it, or with one of its hosts."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration

SPOILT_JOB = """
[job]
name = "spoilt"
task = "spoilt_task:{task}"
epochs = 4
global_batch_size = 64
[train]
digest_every = 5
[checkpoint]
every_steps = 5
[elastic]
settle_s = 0.5
"""


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(3)


def submit(daemons, task, *overrides, **request):
    return daemons.submit(*overrides, text=SPOILT_JOB.format(task=task), **request)


def test_an_optimizer_of_the_tasks_own_fails_the_job_and_is_named(daemons, record_property):
    job = submit(daemons, "OwnOptimizer")
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "loss() of the task changes parameters itself: critic.weight" in answer["reason"]
    assert daemons.events("generation_running", job)
    record_property("seen", "failed at its first step, names critic.weight")


def test_replicas_that_differ_twice_at_one_point_fail_the_job(daemons):
    job = submit(daemons, "Assigning")
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "replicas differ again after step 5, again in model.0.weight" in answer["reason"]
    assert "an assignment in loss()" in answer["reason"]
    assert len(daemons.events("generation_running", job)) == 2
