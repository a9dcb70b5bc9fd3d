"""A sharded state with one mirror, and a worker dies in each phase of a step: no step is lost.

The last death leaves two workers, each of which then holds everything.  Nobody is started again.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

from dtd.wire import messages as m
from tests.integration.deaths import (
    assert_no_step_was_lost,
    assert_survivors_are_equal,
    logged,
    run_with_deaths,
)

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
WORKERS = 6
DEATHS = ("forward-3", "backward-8", "vote-13", "optimizer-19")
JOB = """
[job]
name = "sharded"
task = "dying_task:Dying"
steps = 26
global_batch_size = 128
seed = 7
[task]
transport = "ring"
[optimizer]
name = "adam"
[strategy]
name = "sharded"
mirrors = 1
[checkpoint]
every_steps = 10
[train]
eval_every = 6
clip_norm = 1.0
[elastic]
settle_s = 0.0
"""


@pytest.fixture(scope="module", params=[1, 3])
def ended(request, start_daemons, tmp_path_factory):
    """(the daemons, the job's id, what became of it), with parameters whole or divided as well."""
    deaths = tmp_path_factory.mktemp("deaths")
    job = JOB.replace("mirrors = 1", f"mirrors = 1\nstage = {request.param}")
    return run_with_deaths(start_daemons, deaths, DEATHS, workers=WORKERS, job=job)


def test_deaths_in_any_phase_cost_no_committed_step(ended):
    assert_no_step_was_lost(ended, steps=26, deaths=len(DEATHS))


def test_the_survivors_are_equal(ended):
    _, _, answer = ended
    assert_survivors_are_equal(answer, WORKERS - len(DEATHS))


class Pair:
    """Four workers, one mirror: two neighbours are killed in the same moment.

    Nobody else holds a part of theirs, so the job goes back to its newest checkpoint once they are
    there again with what their disks hold.
    """

    def __init__(self, daemons):
        gates = daemons.hold(31)  # four losses are computed before training
        overrides = ("strategy.name='sharded'", "strategy.mirrors=1", "job.epochs=6")
        self.job = daemons.submit(*overrides, gates=gates)
        daemons.until(self.job, lambda: _saved_by_all(daemons, 20))
        pids = daemons.pids()
        # Both stand still first: a moment after the first death its parts would have moved.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for name in ("worker-1", "worker-2"):
                os.kill(pids[name], number)
        gates.open(0)
        for name in ("worker-1", "worker-2"):
            daemons.child(name).wait(PATIENCE_S)
        daemons.until(self.job, lambda: "has the shards" in self._explained(daemons))
        self.waits = self._explained(daemons)
        daemons.start_again()
        self.answer = daemons.wait(self.job)
        self.lost = daemons.events("steps_lost", self.job)
        self.daemons = daemons

    def _explained(self, daemons):
        return daemons.ask(m.GetStatus())["explain"]


def _saved_by_all(daemons, step):
    """Whether every worker has written its part of the checkpoint after this step."""
    return all(
        any(
            (line["event"], line.get("step")) == ("checkpoint_saved", step)
            for line in logged(daemons, name)
        )
        for name in daemons.pids()
    )


@pytest.fixture(scope="module")
def pair(start_daemons):
    return Pair(start_daemons(4))


def test_two_neighbours_at_once_cost_the_steps_since_the_checkpoint(pair):
    result = pair.answer["result"]
    assert (pair.answer["state"], result["steps"]) == ("done", 48)
    (lost,) = pair.lost
    assert result["steps_lost"] == lost["details"]["steps_lost"] > 0
    assert lost["step"] == 20
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(set(result["replica_digests"].values())) == 1
    assert len(result["replica_digests"]) == 4


def test_it_says_which_part_is_missing_and_who_had_it(pair):
    """One of the two may have been given up before the other was missed."""
    said = re.search(r"no present worker has the shards 1/2 to 3/4 .*, which (.+) had", pair.waits)
    assert said is not None, pair.waits
    assert set(said[1].split(", ")) <= {"worker-1", "worker-2"}
