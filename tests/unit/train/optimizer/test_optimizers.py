"""Which optimizer a job trains with."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.train.optimizer import build_optimizer, optimizer_of


def test_build_optimizer_of_the_task() -> None:
    class Own:
        def build_optimizer(self, params):
            return torch.optim.RMSprop(params, lr=0.5)

    class Wrong:
        def build_optimizer(self, params):
            return "sgd"

    class Sparse:
        def build_optimizer(self, params):
            return torch.optim.SparseAdam(params)

    named = [("w", nn.Parameter(torch.ones(1)))]
    assert isinstance(optimizer_of(Own(), OptimizerTable(), named), torch.optim.RMSprop)
    assert isinstance(optimizer_of(object(), OptimizerTable(), named), torch.optim.SGD)
    with pytest.raises(TaskError, match=r"build_optimizer\(\) of the task returned a str"):
        optimizer_of(Wrong(), OptimizerTable(), named)
    with pytest.raises(TaskError, match=r"takes sparse gradients only.*use Adam"):
        optimizer_of(Sparse(), OptimizerTable(), named)


def test_build_optimizer_by_name() -> None:
    class Own:
        def build_optimizer(self, named_parameters):
            decayed = [p for name, p in named_parameters if "bias" not in name]
            plain = [p for name, p in named_parameters if "bias" in name]
            return torch.optim.SGD([{"params": decayed, "weight_decay": 0.1}, {"params": plain}])

    weight, bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = optimizer_of(Own(), OptimizerTable(), [("weight", weight), ("bias", bias)])
    assert [group["params"] for group in optimizer.param_groups] == [[weight], [bias]]


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


def test_the_fused_kernel_is_for_contiguous_parameters_on_a_cpu() -> None:
    flat, last = torch.ones(2, 3, 4, 5), torch.ones(2, 3, 4, 5)
    last = last.to(memory_format=torch.channels_last)
    for name in ("sgd", "adam", "adamw"):
        for start, fused in ((flat, True), (last, False), (flat.bfloat16(), False)):
            group = build_optimizer(OptimizerTable(name=name), [nn.Parameter(start)]).param_groups
            assert (group[0]["fused"], group[0]["foreach"]) == (fused, not fused)


def test_a_parameter_that_never_has_a_gradient_gets_no_momentum() -> None:
    with_one, without = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(OptimizerTable(name="sgd", momentum=0.9), [with_one, without])
    with_one.grad = torch.ones(2)
    optimizer.step()
    assert list(optimizer.state_dict()["state"]) == [0]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_complex_parameters_are_trained(name: str) -> None:
    table = OptimizerTable(name=name, lr=0.5)
    own, plain = (nn.Parameter(torch.ones(2, dtype=torch.complex64)) for _ in range(2))
    own.grad, plain.grad = torch.ones_like(own), torch.ones_like(plain)
    build_optimizer(table, [own]).step()
    reference_of(table, [plain]).step()
    torch.testing.assert_close(own.detach(), plain.detach())


NOTHING_COMPILED = """
import sys, torch
from dtd.job import OptimizerTable
from dtd.tasks.digits import Digits
from dtd.train.optimizer import build_optimizer

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
