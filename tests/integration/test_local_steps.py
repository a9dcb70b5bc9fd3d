"""Rounds of four local steps, and a worker dies in each phase of one: no committed step is lost.

A generation numbers its rounds from the step that it begins with, so every death is in the second
round of its generation.  Nobody is started again.
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

WORKERS = 6
ROUND = 4
DEATHS = ("forward-1", "optimizer-5", "backward-9", "vote-13")
JOB = f"""
[job]
name = "rounds"
task = "dying_task:Dying"
steps = 34
global_batch_size = 128
seed = 7
[optimizer]
momentum = 0.9
[strategy]
name = "diloco"
inner_steps = {ROUND}
[checkpoint]
every_steps = 10
[train]
eval_every = 6
[sync]
transport = "gloo"
[elastic]
settle_s = 0.0
"""


@pytest.fixture(scope="module")
def ended(start_daemons, tmp_path_factory):
    """(the daemons, the job's id, what became of it)."""
    deaths = tmp_path_factory.mktemp("deaths")
    return run_with_deaths(start_daemons, deaths, DEATHS, workers=WORKERS, job=JOB)


def test_deaths_in_a_round_cost_no_committed_step(ended):
    assert_no_step_was_lost(ended, steps=34, deaths=len(DEATHS))


def test_the_survivors_are_equal(ended):
    _, _, answer = ended
    assert_survivors_are_equal(answer, WORKERS - len(DEATHS))


def test_generations_begin_between_two_rounds(ended):
    daemons, job, answer = ended
    # A generation may end before the last member's "runs" has reached the coordinator.
    begun = sorted({event["step"] for event in daemons.events("generation_forming", job)})
    assert begun[:4] == [0, 4, 8, 12]
    assert begun[4] in (16, 20), "who had prepared the round of the vote may have committed it"
    (name, *_) = answer["result"]["replica_digests"]
    evaluated = [line["step"] for line in logged(daemons, name) if line["event"] == "evaluated"]
    assert {8, 12, 20, 24, 32, 34} <= set(evaluated) <= {8, 12, 16, 20, 24, 32, 34}
