"""Two jobs on two workers each: one worker is killed and comes back, the coordinator, too."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m

pytestmark = pytest.mark.integration


class Beside:
    """Both jobs stop at gates, so that each thing happens while both run."""

    def __init__(self, daemons):
        self.daemons = daemons
        gates = [daemons.hold(5), daemons.hold(5)]
        settings = ("elastic.workers=2", "elastic.settle_s=0", "job.epochs=4")
        self.jobs = [daemons.submit(*settings, gates=one) for one in gates]
        for _ in self.jobs:
            daemons.await_event("generation_running", "with 2 workers")
        self.both = daemons.ask(m.GetStatus())
        self.queued = daemons.submit("elastic.workers=3", "elastic.settle_s=0", "job.epochs=1")
        self.waits = daemons.ask(m.GetStatus())
        self.killed = next(w["name"] for w in self.both["workers"] if w["job"] == self.jobs[1])
        daemons.ask(m.KillWorker(name=self.killed, signal="KILL"))
        daemons.await_event("worker_lost", self.killed)
        daemons.child("coordinator").signal_group(9)
        daemons.child("coordinator").wait(60)
        daemons.start_again()
        for one in gates:
            one.open(0)
        self.answers = [daemons.wait(job) for job in (*self.jobs, self.queued)]


@pytest.fixture(scope="module")
def beside(start_daemons):
    return Beside(start_daemons(4))


def test_both_run_on_workers_of_their_own(beside):
    shown = beside.both["jobs"]
    assert [(one["id"], one["state"], one["world_size"]) for one in shown] == [
        (job, "running", 2) for job in beside.jobs
    ]
    placed = sorted(worker["job"] for worker in beside.both["workers"])
    assert placed == sorted(beside.jobs * 2)
    assert beside.both["job"]["id"] == beside.jobs[0]
    figures = [beside.daemons.ask(m.GetFigures(job=job))["job"] for job in beside.jobs]
    assert figures == beside.jobs


def test_a_third_one_waits_and_says_for_what(beside):
    assert beside.waits["queue"] == [beside.queued]
    one, other = beside.jobs
    said = f"{beside.queued} takes 3 workers; 0 idle; before it: {one}, {other}"
    assert beside.waits["queue_explain"] == said


def test_all_end_with_equal_replicas_and_nothing_is_lost(beside):
    for answer in beside.answers:
        result = answer["result"]
        assert (answer["state"], result["steps_lost"]) == ("done", 0)
        assert len(set(result["replica_digests"].values())) == 1
    first, second, _third = beside.answers
    assert first["result"]["steps"] == second["result"]["steps"] == 32


def test_the_loss_of_a_worker_concerns_its_own_job_alone(beside):
    one, other = beside.jobs
    lost = {event["worker"] for event in beside.daemons.events("worker_lost", other)}
    assert beside.killed in lost
    assert beside.daemons.events("ring_broken", one) == []
