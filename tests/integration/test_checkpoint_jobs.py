"""Jobs that stop in the middle, by a crash or by an operator, and go on from a checkpoint."""

from __future__ import annotations

import pytest

from dtd.errors import RequestRefused
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

# The sum over two workers is not the sum over one, so a job goes on with as many as it began with.
TWO = "elastic.min_workers=2"


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(2)


@pytest.fixture(scope="module")
def uninterrupted(daemons):
    """The job's answer when nothing happens."""
    return daemons.wait(daemons.submit(TWO))


def start_steps(daemons, job):
    """Committed steps from which the job's generations began, in order."""
    return [event["step"] for event in daemons.events("generation_forming", job)]


def test_a_job_goes_on_by_itself_after_everything_was_killed(daemons, uninterrupted):
    gates = daemons.hold(15)
    job = daemons.submit(TWO, gates=gates)
    kept = daemons.directory / "worker-0" / "checkpoints" / job
    daemons.until(job, lambda: any(kept.glob("g*-s000000010/manifest.json")))
    daemons.crash()
    gates.open(0)
    daemons.start_again()
    answer = daemons.wait(job)
    assert answer["state"] == "done"
    assert start_steps(daemons, job) == [0, 10]
    for key in ("steps", "replica_digests", "metrics", "rows_missing", "rows_repeated"):
        assert answer["result"][key] == uninterrupted["result"][key]


def test_a_cancelled_job_is_gone_on_with_by_another(daemons, uninterrupted):
    gates = daemons.hold(15)
    job = daemons.submit(TWO, gates=gates)
    daemons.until(job, lambda: daemons.events("generation_running", job) != [])
    assert daemons.ask(m.CancelJob(job=job)) == {"job": job, "state": "stopping"}
    gates.open(0)
    cancelled = daemons.wait(job)
    assert (cancelled["state"], cancelled["reason"]) == ("cancelled", "cancelled by the operator")
    newest = daemons.ask(m.ListCheckpoints(job=job))["checkpoints"][0]
    assert 0 < newest["step"] < uninterrupted["result"]["steps"]

    with pytest.raises(RequestRefused, match="has no checkpoint of step 31"):
        daemons.submit(TWO, from_job=job, from_step=31)
    other = daemons.submit(TWO, from_job=job)
    answer = daemons.wait(other)
    assert answer["state"] == "done"
    assert start_steps(daemons, other) == [newest["step"]]
    assert answer["result"]["replica_digests"] == uninterrupted["result"]["replica_digests"]
