"""The optimizer that a job trains with."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from dtd.job import OptimizerTable
from dtd.train.optim.optimizer import build_optimizer

LAYOUTS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}
SHAPE = (4, 3, 5, 11)


def reference_of(table: OptimizerTable, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain torch, one parameter after another."""
    arguments = {"lr": table.lr, "weight_decay": table.weight_decay, "foreach": False}
    if table.name == "sgd":
        return torch.optim.SGD(parameters, momentum=table.momentum, **arguments)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[table.name]
    return kind(parameters, betas=(table.beta1, table.beta2), eps=table.eps, **arguments)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_update_is_that_of_plain_torch(
    name: str, layout: str, dtype: torch.dtype, tolerance: float
) -> None:
    """However parameters lie, and also where one of them has its first gradient later."""
    torch.manual_seed(0)
    table = OptimizerTable(name=name, lr=0.1, momentum=0.9, weight_decay=0.01)
    starts = [torch.randn(SHAPE, dtype=dtype) for _ in range(2)]
    own = [nn.Parameter(start.clone(memory_format=LAYOUTS[layout])) for start in starts]
    plain = [nn.Parameter(start.clone()) for start in starts]
    optimizer, reference = build_optimizer(table, own), reference_of(table, plain)
    for present in ([True, False], [True, True], [False, True], [True, True]):
        for one, other, there in zip(own, plain, present, strict=True):
            gradient = torch.randn(SHAPE, dtype=dtype)
            one.grad = gradient.clone() if there else None
            other.grad = gradient.clone() if there else None
        optimizer.step()
        reference.step()
        for one, other in zip(own, plain, strict=True):
            torch.testing.assert_close(one.detach(), other.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_that_only_some_parameters_have_goes_on(nesterov: bool) -> None:
    """As after a state in which a parameter had had no gradient yet."""
    table = OptimizerTable(name="sgd", lr=0.1, momentum=0.9, nesterov=nesterov)
    own = [nn.Parameter(torch.ones(5)) for _ in range(2)]
    plain = [nn.Parameter(torch.ones(5)) for _ in range(2)]
    optimizer, reference = (
        build_optimizer(table, own),
        torch.optim.SGD(plain, lr=0.1, momentum=0.9, nesterov=nesterov, foreach=False),
    )
    assert optimizer.param_groups[0]["fused"]
    begun = torch.optim.SGD(own, lr=0.1, momentum=0.9, nesterov=nesterov)
    own[0].grad, plain[0].grad = torch.full((5,), 2.0), torch.full((5,), 2.0)
    begun.step()
    reference.step()
    state = begun.state_dict()
    assert list(state["state"]) == [0]
    state["param_groups"][0] |= {"fused": True, "foreach": False}
    optimizer.load_state_dict(state)
    for one, other in zip(own, plain, strict=True):
        one.grad, other.grad = torch.full((5,), 3.0), torch.full((5,), 3.0)
    optimizer.step()
    reference.step()
    for one, other in zip(own, plain, strict=True):
        torch.testing.assert_close(one.detach(), other.detach(), rtol=1e-6, atol=0)


NOTHING_COMPILED = """
import sys, torch
from dtd.job import OptimizerTable
from dtd.tasks.digits import Digits
from dtd.train.optim.optimizer import build_optimizer

Digits().train_dataset()
for name in ("sgd", "adam", "adamw"):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(OptimizerTable(name=name), [parameter])
    parameter.grad = torch.ones(3)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
sys.exit(" ".join({"torch._dynamo", "sympy", "sklearn"} & sys.modules.keys()) or None)
"""


def test_a_job_that_compiles_nothing_does_not_import_the_compiler() -> None:
    """Nor the package that holds its data: each would cost every worker a second and more."""
    ended = subprocess.run(
        [sys.executable, "-c", NOTHING_COMPILED], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
