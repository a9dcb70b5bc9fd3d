"""Gradients travel by Gloo, and workers are killed in every phase of a step: nothing is lost.

Nobody is started again, so nine workers, of whom seven die, are two in the end.
"""

from __future__ import annotations

import pytest

from tests.integration.deaths import (
    assert_no_step_was_lost,
    assert_survivors_are_equal,
    logged,
    run_with_deaths,
)

pytestmark = pytest.mark.integration

WORKERS = 9
DEATHS = {
    "forward": 3,
    "backward": 5,
    "exchange": 7,
    "vote": 9,
    "optimizer": 11,
    "checkpoint": 15,
    "evaluation": 19,
}
JOB = """
[job]
name = "dying"
task = "dying_task:Dying"
steps = 24
global_batch_size = 128
seed = 7
[optimizer]
momentum = 0.9
[checkpoint]
every_steps = 15
[train]
eval_every = 1
[sync]
transport = "gloo"
[elastic]
settle_s = 0.0
"""


@pytest.fixture(scope="module")
def ended(start_daemons, tmp_path_factory):
    """(the daemons, the job's id, what became of it)."""
    deaths = tmp_path_factory.mktemp("deaths")
    names = [f"{phase}-{step}" for phase, step in DEATHS.items()]
    return run_with_deaths(start_daemons, deaths, names, workers=WORKERS, job=JOB)


def test_seven_deaths_cost_no_step(ended):
    assert_no_step_was_lost(ended, steps=24, deaths=len(DEATHS))


def test_the_survivors_are_equal_and_were_never_restarted(ended):
    daemons, _, answer = ended
    for name in assert_survivors_are_equal(answer, WORKERS - len(DEATHS)):
        events = [line["event"] for line in logged(daemons, name)]
        assert events.count("job_prepared") == 1
        assert "Fatal Python error" not in daemons.child(name).log_path.read_text()


def test_each_generation_had_a_group_of_its_own(ended):
    daemons, _, answer = ended
    (name, *_) = answer["result"]["replica_digests"]
    formed = [line for line in logged(daemons, name) if line["event"] == "process_group_formed"]
    sizes = [line["world_size"] for line in formed]
    assert sizes == sorted(set(sizes), reverse=True)
    assert (sizes[0], sizes[-1]) == (WORKERS, WORKERS - len(DEATHS))
    assert len({line["generation"] for line in formed}) == len(formed)
