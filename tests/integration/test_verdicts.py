"""The end of a job when something is wrong with it, or with one of its hosts."""

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
    """Submit a job that all three may begin."""
    daemons.await_idle()
    return daemons.submit(*overrides, text=SPOILT_JOB.format(task=task), **request)


def test_an_optimizer_of_the_tasks_own_fails_the_job_and_is_named(daemons, record_property):
    job = submit(daemons, "OwnOptimizer")
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "loss() of the task calls backward() itself: critic." in answer["reason"]
    record_property("seen", "failed at its first step, names critic.weight")


def test_replicas_that_differ_twice_at_one_point_fail_the_job(daemons, record_property):
    job = submit(daemons, "Assigning", "elastic.min_workers=3")
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "replicas differ again after step 5, again in model.0.weight" in answer["reason"]
    assert "an assignment in loss()" in answer["reason"]
    # Formed, not running: one member may tell of the difference before the other says RUNNING.
    assert len(daemons.events("generation_forming", job)) == 2
    record_property("seen", answer["reason"])


def test_a_hook_changes_the_model_that_is_trained_when_training_begins_again(daemons):
    digests = []
    for at in (4, 0):
        two = ("elastic.min_workers=2", "elastic.max_workers=2")
        settings = ("checkpoint.every_steps=1000", *two, f"task.at={at}")
        job = submit(daemons, "DivergingOnce", *settings)
        answer = daemons.wait(job)
        assert (answer["state"], answer["reason"]) == ("done", "")
        assert bool(daemons.events("replicas_diverged", job)) == bool(at)
        digests += answer["result"]["replica_digests"].values()
    assert len(set(digests)) == 1


def bad_host(daemons, name, **task):
    """The overrides of a job that meets a bad host."""
    task = {"mark": str(daemons.directory / name), **task}
    return [
        f"task.{key}={value if key == 'everywhere' else repr(value)}" for key, value in task.items()
    ]


@pytest.mark.parametrize(("at", "why"), [("data", "no data set"), ("step", "no memory left")])
def test_one_bad_host_is_set_aside_and_the_job_is_done_by_the_others(
    daemons, record_property, at, why
):
    job = submit(daemons, "BadHost", *bad_host(daemons, at, at=at))
    told = daemons.await_event("worker_set_aside", why, job=job)
    answer = daemons.wait(job)
    assert (answer["state"], answer["reason"]) == ("done", "")
    digests = answer["result"]["replica_digests"]
    assert len(set(digests.values())) == 1
    assert "Traceback" in told["details"]["traceback"]
    record_property("seen", f"done; {told['message']}")


def test_what_fails_on_two_hosts_fails_the_job(daemons):
    job = submit(daemons, "BadHost", *bad_host(daemons, "everywhere", at="data", everywhere="true"))
    answer = daemons.wait(job)
    assert answer["state"] == "failed"
    assert "FileNotFoundError: no data set at /data/rows (on worker-" in answer["reason"]
