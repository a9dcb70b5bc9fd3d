"""Units of a model: their division, their memory, and the observation of their uses."""

from __future__ import annotations

import torch
from torch import nn

from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.sharded.parameters import GatheredParameters
from dtd.strategy.sharded.units import plan_units, units_of


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(4))
        self.embedding = nn.Embedding(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


def trained(model: nn.Module):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def units(model: nn.Module, bucket_bytes: int) -> list[list[str]]:
    names = [name for name, _ in trained(model)]
    parameters = [parameter for _, parameter in trained(model)]
    found = units_of(model, parameters, bucket_bytes=bucket_bytes)
    return [[names[index] for index in unit.parameters] for unit in found]


def test_larger_modules_are_divided_and_tied_parameters_belong_to_the_first() -> None:
    assert units(Model(), 100) == [
        ["token"],
        ["embedding.weight"],
        ["blocks.0.0.weight", "blocks.0.0.bias"],
        ["blocks.1.0.weight", "blocks.1.0.bias"],
    ]


def test_memory_is_released_and_comes_back_for_what_autograd_has_saved() -> None:
    layer = nn.Linear(3, 3)
    named = trained(layer)
    parameters = [parameter for _, parameter in named]
    found = units_of(layer, parameters, bucket_bytes=100)
    plan, _ = plan_units(parameter_shapes(named), found, bucket_bytes=100)
    memory = GatheredParameters(parameters, plan)
    values = memory.flats[0].clone()
    x = torch.ones(1, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x).sum(), x)[0]
    loss = layer(x).sum()
    memory.empty(0)
    assert memory.size_bytes == 0
    memory.fill(0, values)
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], expected)
    memory.empty(0)
    memory.hide()
    assert bool(layer.weight.isnan().all())
    memory.fill(0, values)
    memory.show()
    torch.testing.assert_close(layer.weight, parameters[0])
    assert not bool(layer.weight.isnan().any())
