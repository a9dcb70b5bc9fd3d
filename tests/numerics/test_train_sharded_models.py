"""Sharded training of models that reach their parameters in unusual ways."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from dtd.errors import TaskError

pytestmark = pytest.mark.numerics

TABLES = {"job": {"steps": 6}, "optimizer": {"name": "adam", "lr": 0.01}}


class Base(nn.Module):
    """Three layers, each with buckets of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Listed(Base):
    """Computes with weights of a list, not of their modules."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [self.second.weight, self.first.weight]

    def forward(self, x):
        hidden = torch.tanh(functional.linear(x, self.listed[1]))
        return self.last(torch.tanh(functional.linear(hidden, self.listed[0])))


class Positions(nn.Module):
    """Returns a view of its own parameter, among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(20, 6))

    def forward(self, x):
        return {"places": [self.table[: len(x)]], "rows": len(x)}


class Positioned(Base):
    """Uses what a module has returned of its parameter after others have run."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = Positions()

    def forward(self, x):
        places = self.positions(x)["places"][0]
        return super().forward(x) * (1 + places.square().sum())


class Recurrent(nn.Module):
    """Layers of torch that keep lists of their weights; one is called without its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 4, batch_first=True)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        hidden, _ = self.lstm(x.unsqueeze(1))
        hidden, _ = self.gru.forward(hidden)
        return self.last(hidden.squeeze(1))


class Computed(nn.Module):
    """Weights that are computed from parameters whenever they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
        self.second = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
        self.last = nn.Sequential(nn.Linear(8, 3))

    def forward(self, x):
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        scaled = {name: 1.5 * value for name, value in self.last.named_parameters()}
        return torch.func.functional_call(self.last, scaled, (hidden,))


class Nested(nn.Module):
    """Lists, dictionaries and parameters without elements; its work is not done in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(3, 0))
        self.scale = nn.Parameter(torch.ones(1))
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"layer": nn.Linear(6, 6), "norm": nn.LayerNorm(6)}) for _ in range(3)
        )
        self.shifts = nn.ParameterDict({"a": torch.randn(6), "b": torch.randn(6)})
        self.last = nn.Linear(6, 3)

    def encode(self, x):
        hidden = []
        for block in self.blocks:
            x = block["norm"](torch.tanh(block["layer"](x)) * self.scale)
            hidden.append((x, {"sum": x.sum()}))
        return hidden

    def forward(self, x):
        hidden = self.encode(x)[-1][0]
        for shift in self.shifts.values():
            hidden = hidden + shift
        return self.last(hidden) + self.nothing.sum()


class Repeated(Base):
    """Layers that run several times, with and without gradients, and gradients of gradients."""

    def forward(self, x):
        with torch.no_grad():
            goal = super().forward(x)
        x = x.clone().requires_grad_()
        result = super().forward(x)
        (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return self.last(torch.tanh(self.second(torch.tanh(self.first(slope))))) + result - goal


MODELS = [Positioned, Recurrent, Computed, Nested, Repeated]


def task_of(regression, build):
    class Task(regression):
        def build_model(self):
            return build().double()

    return Task()


def compare(arena, task, *stages) -> None:
    """Every rank has the losses of a replicated job, and the same weights."""
    expected = arena.train(task, arena.spec(**TABLES), 3, job_id="whole")[0]
    for stage in stages:
        spec = arena.spec(strategy={"name": "sharded", "stage": stage}, **TABLES)
        assert_alike(arena.train(task, spec, 3, job_id=f"stage {stage}"), expected)


def assert_alike(got, expected) -> None:
    losses = [one.loss for one in expected.recorder.steps]
    whole = {f"model.{name}": value.detach() for name, value in expected.model.named_parameters()}
    for rank in got:
        assert [one.loss for one in rank.recorder.steps] == pytest.approx(losses, rel=1e-9)
        for one in rank.replica.shards.tensors():
            for piece in one.pieces if one.name in whole else ():
                theirs = whole[one.name].reshape(-1)[piece.start : piece.stop]
                torch.testing.assert_close(piece.values, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("build", MODELS)
def test_unusual_ways_to_reach_parameters(arena, regression, build) -> None:
    compare(arena, task_of(regression, build), 2, 3)


def test_a_weight_that_is_kept_elsewhere_is_waited_for(arena, regression) -> None:
    compare(arena, task_of(regression, Listed), 2)


class Offloaded(Base):
    """Keeps what autograd saves elsewhere, past any hooks around it."""

    def forward(self, x):
        with torch.autograd.graph.save_on_cpu():
            return super().forward(x)


@pytest.mark.parametrize(
    ("build", "named"), [(Listed, r"first\.weight"), (Offloaded, r"last\.weight")]
)
def test_what_cannot_be_gathered_in_time_is_named(arena, regression, build, named) -> None:
    spec = arena.spec(strategy={"name": "sharded", "stage": 3}, **TABLES)
    with pytest.raises(TaskError, match=rf"uses {named} outside of its module") as caught:
        arena.start(task_of(regression, build), spec)
    assert "strategy.stage = 2" in caught.value.remedy


@pytest.mark.parametrize("stage", [2, 3])
def test_a_copy_of_the_model_is_not_gathered(arena, regression, stage) -> None:
    """The task has another model that is one when training starts."""

    class Task(regression):
        def build_model(self):
            self.built = Base().double()
            self.teacher = copy.deepcopy(self.built)
            return self.built

        def on_start(self, moment):
            self.teacher = copy.deepcopy(self.built).requires_grad_(requires_grad=False)

        def loss(self, model, batch):
            x, y = batch
            with torch.no_grad():
                goal = self.teacher(x)
            return (model(x) - y - goal).square().mean()

    def train(job_id, **tables):
        spec = arena.spec(**TABLES, **tables)
        ranks = [arena.start(Task(), spec, name=f"w{i}", job_id=job_id) for i in range(3)]
        for rank in ranks[1:]:
            arena.copy_state(ranks[0], rank)
        arena.generation(ranks)
        for rank in ranks:
            if rank.error is not None:
                raise rank.error
        return [one.loss for one in ranks[0].recorder.steps]

    got = train("parts", strategy={"name": "sharded", "stage": stage})
    assert got == pytest.approx(train("whole"), rel=1e-9)
