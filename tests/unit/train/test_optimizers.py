"""Which optimizer a job trains with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.train.optimizers import optimizer_of


def test_build_optimizer_of_the_task() -> None:
    class Own:
        def build_optimizer(self, params):
            return torch.optim.RMSprop(params, lr=0.5)

    class Wrong:
        def build_optimizer(self, params):
            return "sgd"

    parameters = [nn.Parameter(torch.ones(1))]
    assert isinstance(optimizer_of(Own(), OptimizerTable(), parameters), torch.optim.RMSprop)
    assert isinstance(optimizer_of(object(), OptimizerTable(), parameters), torch.optim.SGD)
    with pytest.raises(TaskError, match=r"build_optimizer\(\) of the task returned a str"):
        optimizer_of(Wrong(), OptimizerTable(), parameters)
