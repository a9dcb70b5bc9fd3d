"""Tasks that sharded training cannot train like plain torch are refused by name before step 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dtd.wire import messages as m
from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "refusals"
task = "hooked_task:Hooked"
steps = 12
global_batch_size = 8
seed = 5
[task]
hook = "{hook}"
[strategy]
name = "{name}"
{stage}
[elastic]
settle_s = 0.0
min_workers = 2
"""


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


def hooked(hook: str, stage: int = 0) -> str:
    """A job's text; stage 0 is replicated training."""
    name = "sharded" if stage else "replicated"
    return JOB.format(hook=hook, name=name, stage=f"stage = {stage}" if stage else "")


@pytest.mark.parametrize(("hook", "stage"), [("clip", 1), ("follow", 3)])
def test_a_hook_that_may_need_whole_parameters_is_refused(
    daemons: Daemons, hook: str, stage: int
) -> None:
    job = daemons.submit(text=hooked(hook, stage))
    answer = daemons.wait(job)
    assert answer["state"] == "failed", answer
    assert f"a hook of its step, Hooked.{hook}," in answer["reason"]
    assert "elementwise = True" in answer["reason"]
    assert not daemons.events("generation_running", job)


def test_an_elementwise_hook_trains_as_in_replicated_training(daemons: Daemons) -> None:
    losses = []
    for stage in (0, 1, 3):
        job = daemons.submit(text=hooked("clamp", stage))
        answer = daemons.wait(job)
        assert answer["state"] == "done", answer
        losses.append(answer["result"]["train_loss"])
    assert losses == pytest.approx(losses[:1] * 3, rel=1e-6)


def test_replicated_training_takes_any_hook(daemons: Daemons) -> None:
    job = daemons.submit(text=hooked("follow"))
    assert daemons.wait(job)["state"] == "done"
    assert not daemons.events("replicas_diverged", job)


BRANCHING = """
[job]
name = "branching"
task = "branching_task:Branching"
steps = 60
global_batch_size = 6
seed = 5
[strategy]
name = "sharded"
stage = 3
[sync]
bucket_mib = 0.0003
[checkpoint]
every_steps = 1000
[elastic]
settle_s = 0.0
min_workers = 2
"""


def test_branches_that_differ_by_row_are_refused_before_the_first_step(daemons: Daemons) -> None:
    job = daemons.submit("task.every=8", text=BRANCHING)
    answer = daemons.wait(job)
    assert answer["state"] == "failed", answer
    assert "the model uses its parameters in another order" in answer["reason"]
    assert "strategy.stage = 2" in answer["reason"]
    assert not daemons.events("generation_running", job)


@pytest.mark.parametrize("mirrors", [0, 1])
def test_a_branch_that_is_first_taken_in_training_costs_no_committed_step(
    daemons: Daemons, mirrors: int
) -> None:
    job = daemons.submit("task.every=150", f"strategy.mirrors={mirrors}", text=BRANCHING)
    answer = daemons.wait(job)
    assert answer["state"] == "failed", answer
    assert "two.weight where it used one.weight" in answer["reason"]
    (step,) = {one["step"] for one in daemons.ask(m.ListCheckpoints(job=job))["checkpoints"]}
    assert step > 0
    (saving,) = daemons.events("job_saving", job)
    assert saving["step"] == step
