"""A user of a parameter waits until it has been gathered, and for nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.sharded.parameters import FlatParameters


class Gathers:
    """Starts and waits for exchanges, and says in which order."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.awaited: list[int] = []

    def into(self, parameters: FlatParameters) -> None:
        parameters.start(self.started.append, self.awaited.append)


def flat_parameters(model: nn.Module, *, mirrors: int = 0) -> FlatParameters:
    """One bucket for each parameter."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plan = plan_buckets(parameter_shapes(named), bucket_bytes=1, first_bucket_bytes=1)
    return FlatParameters([p for _, p in named], plan, model, mirrors=mirrors)


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))


def test_a_layer_waits_for_its_own_parameters_only_first_layers_first() -> None:
    model, gathers = chain(), Gathers()
    parameters = flat_parameters(model)
    gathers.into(parameters)
    assert gathers.started == [0, 1, 2]
    hidden = model[0](torch.ones(1, 4))
    assert gathers.awaited == [0]
    model[1](hidden)
    assert gathers.awaited == [0, 1]
    parameters.wait()
    model(hidden)
    assert gathers.awaited == [0, 1, 2]


@pytest.mark.parametrize("direct", [False, True])
def test_a_model_that_keeps_a_weight_elsewhere_for_some_rows_waits_for_all(direct) -> None:
    model, gathers = chain(), Gathers()
    parameters, kept = flat_parameters(model), [model[2].weight]
    ones = torch.ones(1, 4)
    passes = [lambda: model(ones), lambda: ones @ (kept[0] if direct else model[1].weight)]
    parameters.watch(passes)
    gathers.into(parameters)
    assert gathers.awaited == ([0, 1, 2] if direct else [])


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model[2].weight,
        lambda model: model[2]._parameters.get("weight"),
        lambda model: list(model[2]._parameters.values()),
        lambda model: list(model[2].named_parameters()),
        lambda model: nn.functional.linear(torch.ones(1, 4), model[2].weight),
    ],
    ids=["attribute", "get", "values", "named", "of another module"],
)
def test_a_parameter_that_is_used_without_its_module_is_waited_for(use) -> None:
    model, gathers = chain(), Gathers()
    gathers.into(flat_parameters(model))
    use(model)
    assert gathers.awaited == [2]


def test_a_compiled_model_waits_for_everything_at_once() -> None:
    class OptimizedModule(nn.Sequential):
        """Named like that of torch.compile."""

    model, gathers = OptimizedModule(nn.Linear(4, 4)), Gathers()
    gathers.into(flat_parameters(model))
    assert gathers.awaited == [0, 1]
    assert type(model[0]._parameters) is dict
