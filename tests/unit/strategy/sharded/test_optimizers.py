"""Which optimizers may be given parts of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.strategy.sharded.optimizers import check_shardable
from dtd.train.optimizer.build import build_optimizer

CPU = torch.device("cpu")
NAMES = ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"]
NAMES += ["Adagrad", "Adadelta", "Adamax", "ASGD", "Rprop"]


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 2))]


@pytest.mark.parametrize("name", NAMES)
def test_elementwise_optimizers_are_accepted(name) -> None:
    check_shardable(getattr(torch.optim, name)(parameters(), lr=0.1), CPU)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_those_of_job_files_are_accepted(name) -> None:
    check_shardable(build_optimizer(OptimizerTable(name=name), parameters()), CPU)


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


def test_an_own_optimizer_may_say_that_it_is_elementwise() -> None:
    check_shardable(OwnElementwise(parameters(), lr=0.1), CPU)


def test_gpus_are_refused() -> None:
    with pytest.raises(TaskError, match="CPUs only"):
        check_shardable(torch.optim.SGD(parameters(), lr=0.1), torch.device("cuda:0"))
