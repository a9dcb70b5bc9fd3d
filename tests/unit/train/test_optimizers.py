"""Which optimizer a job trains with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.train.optimizers import build_optimizer, optimizer_of


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


LAYOUTS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_update_is_that_of_plain_torch_however_parameters_lie(name: str, layout: str) -> None:
    table = OptimizerTable(name=name, lr=0.1, momentum=0.9, weight_decay=0.01)
    start, gradients = torch.randn(4, 3, 5, 2), [torch.randn(4, 3, 5, 2) for _ in range(4)]
    own = nn.Parameter(start.clone(memory_format=LAYOUTS[layout]))
    plain = nn.Parameter(start.clone())
    arguments = {"lr": table.lr, "weight_decay": table.weight_decay}
    if name == "sgd":
        reference = torch.optim.SGD([plain], momentum=table.momentum, foreach=False, **arguments)
    else:
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
        betas = (table.beta1, table.beta2)
        reference = kind([plain], betas=betas, eps=table.eps, foreach=False, **arguments)
    optimizer = build_optimizer(table, [own])
    assert optimizer.defaults["fused"] == (layout == "contiguous")
    for gradient in gradients:
        own.grad, plain.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(own.detach(), plain.detach())


def test_complex_parameters_are_trained() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    parameter.grad = torch.ones_like(parameter)
    build_optimizer(OptimizerTable(lr=0.5), [parameter]).step()
    assert torch.equal(parameter.detach(), torch.full((2,), 0.5, dtype=torch.complex64))
