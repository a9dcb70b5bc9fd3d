"""Parameter servers with one mirror; workers and servers die in phases of a step: no step is lost.

The last death leaves one server, which then holds everything.  Nobody is started again.
"""

from __future__ import annotations

import os
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
WORKERS = 4
SERVERS = 4
DEATHS = ("forward-3", "exchange-8@server", "backward-13", "vote-18@server", "optimizer-23@server")
SHARDED = """
[optimizer]
name = "adam"
[strategy]
name = "sharded"
owners = "servers"
mirrors = 1
[checkpoint]
every_steps = 10
[train]
eval_every = 6
clip_norm = 1.0
[elastic]
settle_s = 0.0
"""
JOB = f"""
[job]
name = "served"
task = "dying_task:Dying"
steps = 30
global_batch_size = 128
seed = 7
[task]
transport = "ring"
{SHARDED}"""


@pytest.fixture(scope="module", params=[1, 3])
def ended(request, start_daemons, tmp_path_factory):
    """(the daemons, the job's id, what became of it), with parameters whole or divided as well."""
    deaths = tmp_path_factory.mktemp("deaths")
    job = JOB.replace("mirrors = 1", f"mirrors = 1\nstage = {request.param}")
    return run_with_deaths(start_daemons, deaths, DEATHS, workers=WORKERS, job=job, servers=SERVERS)


def test_deaths_of_workers_and_servers_cost_no_committed_step(ended):
    assert_no_step_was_lost(ended, steps=30, deaths=len(DEATHS))


def test_the_survivors_are_equal(ended):
    _, _, answer = ended
    names = assert_survivors_are_equal(answer, WORKERS + SERVERS - len(DEATHS))
    assert sum(name.startswith("server-") for name in names) == 1


def test_the_last_server_has_the_whole_checkpoint(ended):
    daemons, job, _ = ended
    (listed,) = (
        one for one in daemons.ask(m.ListCheckpoints(job=job))["checkpoints"] if one["step"] == 30
    )
    assert listed["worker"].startswith("server-")


class OnlyServer:
    """Two workers and one server, which is killed: the workers cannot go on without its state."""

    def __init__(self, daemons):
        self.daemons = daemons
        gates = daemons.hold(31)  # four losses are computed before training
        overrides = ("strategy.name='sharded'", "strategy.owners='servers'", "job.epochs=6")
        self.job = daemons.submit(*overrides, gates=gates)
        daemons.until(self.job, lambda: _has_saved(daemons, "server-0", 20))
        os.kill(daemons.pids()["server-0"], signal.SIGKILL)
        gates.open(0)
        daemons.child("server-0").wait(PATIENCE_S)
        daemons.until(self.job, lambda: "parameter server" in self._explained(daemons))
        self.waits = self._explained(daemons)
        daemons.start_again()
        self.answer = daemons.wait(self.job)
        self.lost = daemons.events("steps_lost", self.job)

    def _explained(self, daemons):
        return daemons.ask(m.GetStatus())["explain"]


def _has_saved(daemons, name, step):
    return any(
        (line["event"], line.get("step")) == ("checkpoint_saved", step)
        for line in logged(daemons, name)
    )


@pytest.fixture(scope="module")
def only_server(start_daemons):
    return OnlyServer(start_daemons(2, 1))


def test_the_loss_of_the_only_server_costs_the_steps_since_the_checkpoint(only_server):
    result = only_server.answer["result"]
    assert "no parameter server is ready; start one with `dtd-worker --role server`" in (
        only_server.waits
    )
    assert (only_server.answer["state"], result["steps"]) == ("done", 48)
    (lost,) = only_server.lost
    assert (lost["step"], result["steps_lost"] > 0) == (20, True)
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(set(result["replica_digests"].values())) == 1


@pytest.mark.parametrize(
    "strategy",
    [(), ("strategy.name='sharded'", "strategy.mirrors=1"), ("elastic.workers=1",)],
    ids=["replicated", "sharded", "alone"],
)
def test_a_job_of_any_strategy_goes_on_from_what_the_server_has(only_server, strategy):
    """None of its workers has a part of that checkpoint."""
    daemons = only_server.daemons
    daemons.await_idle()
    epochs = ("job.epochs=7", *strategy)
    job = daemons.submit(*epochs, from_job=only_server.job, from_mode="resume")
    result = daemons.wait(job)["result"]
    assert (result["steps"], result["rows_missing"], result["rows_repeated"]) == (56, 0, 0)
    assert len(set(result["replica_digests"].values())) == 1
    steps = {one["step"] for one in daemons.ask(m.ListCheckpoints(job=job))["checkpoints"]}
    assert steps == {50, 56}
