"""Workers are killed, come back and leave while a job runs; nothing is lost by that."""

from __future__ import annotations

import json

import pytest

from dtd.wire import messages as m
from dtd.worker.main import START_AGAIN_EXIT_CODE

pytestmark = pytest.mark.integration

PATIENCE_S = 100.0


class Upheaval:
    """One job of three workers: one is killed and comes back, another one leaves.

    The workers stop at gates of their training, so each thing happens while the one before lasts.
    """

    def __init__(self, daemons, *strategy):
        self.daemons = daemons
        gates = daemons.hold(5, 40, 80)
        self.before = daemons.pids()
        self.job = daemons.submit("job.epochs=12", *strategy, gates=gates)
        self.first = daemons.await_event("generation_running", job=self.job)

        self.killed = daemons.ask(m.KillWorker(name="worker-2", signal="KILL"))
        self.lost = daemons.await_event("worker_lost", job=self.job)
        gates.open(0)
        self.second = daemons.await_event("generation_running", job=self.job)
        self.kill_code = daemons.child("worker-2").wait(PATIENCE_S)
        daemons.start_again()
        self.joins = daemons.await_event("generation_ending", job=self.job)
        gates.open(1)
        self.third = daemons.await_event("generation_running", job=self.job)
        self.between = daemons.pids()

        daemons.ask(m.KillWorker(name="worker-1", signal="TERM"))
        self.leaves = daemons.await_event("generation_ending", job=self.job)
        gates.open(2)
        self.leave_code = daemons.child("worker-1").wait(PATIENCE_S)
        self.answer = daemons.wait(self.job)
        self.after = daemons.pids()


INT8 = ("strategy.codec='int8'",)
TOP_K = (
    *("strategy.codec='top_k'", "strategy.density_warmup_steps=60"),
    *("strategy.momentum=0.9", "optimizer.momentum=0"),
)


@pytest.fixture(scope="module", params=[INT8, TOP_K], ids=["int8", "top_k"])
def upheaval(request, start_daemons):
    """With codecs that keep on each worker what it has not sent: a sum, and a gather."""
    return Upheaval(start_daemons(3), *request.param)


def test_the_job_is_done_and_no_step_is_lost(upheaval):
    result = upheaval.answer["result"]
    assert (upheaval.answer["state"], result["steps"], result["steps_lost"]) == ("done", 96, 0)
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert sorted(result["replica_digests"]) == ["worker-0", "worker-2"]
    assert len(set(result["replica_digests"].values())) == 1
    assert upheaval.daemons.events("steps_lost", upheaval.job) == []


def test_the_others_go_on_until_the_killed_one_is_back(upheaval):
    running = (upheaval.first, upheaval.second, upheaval.third)
    words = [event["message"].split(" runs with ")[1].split()[0] for event in running]
    assert words == ["3", "2", "3"]
    assert upheaval.killed["pid"] == upheaval.before["worker-2"]
    assert upheaval.kill_code == -9
    assert upheaval.lost["worker"] == "worker-2"
    assert "worker-2 joins" in upheaval.joins["message"]
    assert upheaval.first["step"] <= upheaval.second["step"] < upheaval.third["step"]


def test_only_the_killed_process_is_a_new_one(upheaval):
    changed = {name for name, pid in upheaval.between.items() if pid != upheaval.before[name]}
    assert changed == {"worker-2"}
    assert upheaval.after["worker-0"] == upheaval.before["worker-0"]


def test_the_newcomer_takes_its_state_from_the_others(upheaval):
    log = upheaval.daemons.child("worker-2").log_path.read_text().splitlines()
    lines = [json.loads(line) for line in log if line.startswith("{")]
    pid = upheaval.between["worker-2"]
    (started,) = (at for at, line in enumerate(lines) if line.get("pid") == pid)
    (received,) = (line for line in lines[started:] if line["event"] == "state_received")
    assert received["bytes"] > 0


def test_a_worker_that_is_told_to_end_leaves_in_good_order(upheaval):
    assert "worker-1 leaves" in upheaval.leaves["message"]
    assert upheaval.leave_code == START_AGAIN_EXIT_CODE
    lost = upheaval.daemons.events("worker_lost", upheaval.job)
    assert [event["worker"] for event in lost] == ["worker-2"]
