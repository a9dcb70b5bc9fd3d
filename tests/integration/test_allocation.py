"""Two jobs of 1 to 3 workers on three: the second gets one, and all when the first has ended."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m

pytestmark = pytest.mark.integration

RANGE = ("elastic.workers=1-3", "elastic.settle_s=0", "job.epochs=4")


class Shared:
    """Both jobs stop at gates, so that each move happens while both run."""

    def __init__(self, daemons):
        self.daemons = daemons
        first, second = daemons.hold(5, 12), daemons.hold(5, 12)
        one = daemons.submit(*RANGE, gates=first)
        daemons.await_event("generation_running", "with 3 workers", job=one)
        other = daemons.submit(*RANGE, gates=second)
        self.waits = daemons.ask(m.GetStatus())["queue_explain"]
        self.moved = daemons.await_event("worker_moves")
        first.open(0)
        daemons.await_event("generation_running", "with 1 worker", job=other)
        self.both = daemons.ask(m.GetStatus())
        first.open(1)
        for gate in range(2):  # both of the first job's workers join at one boundary, or at two
            daemons.await_event("generation_ending", "joins", job=other)
            second.open(gate)
            grown = daemons.await_event("generation_running", job=other)
            if "with 3 workers" in grown["message"]:
                break
        self.grown = grown
        second.open_all()
        self.jobs = [one, other]
        self.answers = [daemons.wait(job) for job in self.jobs]


@pytest.fixture(scope="module")
def shared(start_daemons):
    return Shared(start_daemons(3))


def test_the_second_job_gets_a_worker_of_the_first(shared):
    one, other = shared.jobs
    assert shared.waits.startswith(f"{other} takes 1 worker or more, up to 3; 0 idle")
    assert shared.moved["job"] == one
    assert shared.moved["message"].endswith(f"{other} waits for its least, 1 worker")
    shown = {job["id"]: job for job in shared.both["jobs"]}
    assert (shown[one]["world_size"], shown[other]["world_size"]) == (2, 1)
    allotment = shown[other]["allotment"]
    assert (allotment["least"], allotment["most"], allotment["workers"]) == (1, 3, 1)
    assert allotment["why"] == f"shares evenly with {one}"
    placed = {worker["name"]: worker["job"] for worker in shared.both["workers"]}
    assert placed[shared.moved["worker"]] == other


def test_it_grows_when_the_first_has_ended(shared):
    assert "with 3 workers" in shared.grown["message"]


def test_both_end_with_equal_replicas_every_row_once_and_nothing_lost(shared):
    for answer in shared.answers:
        result = answer["result"]
        assert (answer["state"], result["steps_lost"], result["steps"]) == ("done", 0, 32)
        assert len(set(result["replica_digests"].values())) == 1
        assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    for job in shared.jobs:
        assert shared.daemons.events("worker_lost", job) == []
