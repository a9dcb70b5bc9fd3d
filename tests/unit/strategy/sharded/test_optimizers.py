"""Which optimizers may be given parts of parameters."""

from __future__ import annotations

from types import MethodType

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from dtd.errors import TaskError
from dtd.strategy.sharded.optimizers import check_shardable

CPU = torch.device("cpu")
NAMES = ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"]
NAMES += ["Adagrad", "Adadelta", "Adamax", "ASGD", "Rprop"]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2))]


class Own(torch.optim.SGD):
    """May do anything in its step."""


class OwnElementwise(Own):
    """Says that it does not."""

    elementwise = True


# --- hooks of the step -------------------------------------------------------------------------


def clip(*_) -> None:
    """Looks at norms, for all that is known."""


def clamp(*_) -> None:
    """Says that it does not."""


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
