"""Which optimizers may be given parts of parameters."""

from __future__ import annotations

from types import MethodType

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.strategy.sharded.optimizers import check_shardable
from dtd.train.optimizer import build_optimizer

CPU = torch.device("cpu")
NAMES = ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"]
NAMES += ["Adagrad", "Adadelta", "Adamax", "ASGD", "Rprop"]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2))]


@pytest.mark.parametrize("name", NAMES)
def test_elementwise_optimizers_are_accepted(name) -> None:
    check_shardable(getattr(torch.optim, name)(parameters(), lr=0.1), CPU)


class Own(torch.optim.SGD):
    """May do anything in its step."""


class OwnElementwise(Own):
    """Says that it does not."""

    elementwise = True


@pytest.mark.parametrize(
    "build", [torch.optim.LBFGS, torch.optim.Adafactor, Own], ids=["LBFGS", "Adafactor", "own"]
)
def test_others_are_refused_with_what_to_do(build) -> None:
    with pytest.raises(TaskError, match="may need all of it") as caught:
        check_shardable(build(parameters(), lr=0.1), CPU)
    assert "elementwise = True" in str(caught.value)
    assert "NAdam" in str(caught.value)


# --- hooks of the step -------------------------------------------------------------------------


def clip(*_) -> None:
    """Looks at norms, for all that is known."""


def clamp(*_) -> None:
    """Says that it does not."""


clamp.elementwise = True  # type: ignore[attr-defined]


class Averages:
    def follow(self, *_) -> None:
        """Belongs to a task."""

    def clamp(self, *_) -> None:
        """Declared."""

    clamp.elementwise = True  # type: ignore[attr-defined]


def add_pre_hook(optimizer, hook) -> None:
    optimizer.register_step_pre_hook(hook)


def add_post_hook(optimizer, hook) -> None:
    optimizer.register_step_post_hook(hook)


def replace_step(optimizer, step) -> None:
    optimizer.step = step


def replace_step_under_a_schedule(optimizer, step) -> None:
    optimizer.step = MethodType(step, optimizer)
    lr_scheduler.StepLR(optimizer, 1)


WAYS = pytest.mark.parametrize(
    "add", [add_pre_hook, add_post_hook, replace_step, replace_step_under_a_schedule]
)


@WAYS
@pytest.mark.parametrize("kind", [torch.optim.SGD, OwnElementwise])
def test_what_is_added_to_the_step_is_refused_by_name(add, kind) -> None:
    optimizer = kind(parameters(), lr=0.1)
    add(optimizer, clip)
    with pytest.raises(TaskError, match=rf"the task has given {kind.__name__} .*, clip,") as caught:
        check_shardable(optimizer, CPU)
    assert "elementwise = True" in caught.value.remedy


@WAYS
def test_what_is_declared_elementwise_is_accepted(add) -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    add(optimizer, clamp)
    check_shardable(optimizer, CPU)


def test_a_schedule_around_the_step_is_no_hook() -> None:
    for optimizer in (
        build_optimizer(OptimizerTable(name="sgd"), parameters()),
        torch.optim.Adam(parameters()),
    ):
        first, second = (lr_scheduler.LinearLR(optimizer) for _ in range(2))
        lr_scheduler.SequentialLR(optimizer, [first, second], [3])
        check_shardable(optimizer, CPU)
