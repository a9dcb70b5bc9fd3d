"""What sharded training cannot do as plain torch does is refused by name before the first step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
