"""Unusual models and optimizers: a strategy trains them as plain torch does, or says why not."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from tests.numerics.odd_models import ASKS, EVERYWHERE, FAILS, REFUSED, STAGES, TRAINS, Base

pytestmark = pytest.mark.numerics

STRATEGIES = {
    "replicated": {},
    **{
        f"stage {stage}": {"strategy": {"name": "sharded", "stage": stage, "mirrors": 0}}
        for stage in (1, 2, 3)
    },
}
WORLD = 2
EPS = 1e-3
"""Which float16 can hold: the default is 0 there, and 0 / 0 not a number."""


def in_turn(names):
    """Each with replicated training, and with one of the stages."""
    return pytest.mark.parametrize(
        ("name", "strategy"),
        [(name, one) for at, name in enumerate(names) for one in (EVERYWHERE[0], STAGES[at % 3])],
    )


def ends(strategies):
    """Two of the strategies that refuse the same for the same reason."""
    return sorted({strategies[0], strategies[-1]})


def task_of(regression, build, **methods):
    class Task(regression):
        def build_model(self):
            return build()

    for name, method in methods.items():
        setattr(Task, name, method)
    return Task()


def spec_of(arena, strategy: str):
    return arena.spec(
        job={"steps": 6}, optimizer={"name": "adam", "lr": 0.01, "eps": EPS}, **STRATEGIES[strategy]
    )


def adam(parameters) -> torch.optim.Optimizer:
    """As in a job: of what is trained, with dense gradients."""
    trained = [one for one in parameters if one.requires_grad]
    for one in trained:
        one.register_post_accumulate_grad_hook(make_dense)
    return torch.optim.Adam(trained, lr=0.01, eps=EPS)


def make_dense(parameter) -> None:
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def compare(ranks, expected: nn.Module, tolerance: float) -> None:
    """Every rank has the weights of plain torch, all of them or its part."""
    whole = {f"model.{name}": one.detach() for name, one in expected.named_parameters()}
    for rank in ranks:
        shards = rank.replica.shards
        if shards is None:
            pairs = zip(rank.model.parameters(), whole.values(), strict=True)
        else:
            pairs = [
                (piece.values, whole[one.name].reshape(-1)[piece.start : piece.stop])
                for one in shards.tensors()
                if one.name in whole
                for piece in one.pieces
            ]
        for own, theirs in pairs:
            torch.testing.assert_close(own.detach(), theirs, rtol=tolerance, atol=tolerance)


# --- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        (name, one)
        for at, name in enumerate(TRAINS)
        for one in (EVERYWHERE[0], STAGES[at % 2], STAGES[2])
    ],
)
def test_it_trains_as_in_plain_torch(arena, regression, plain_torch, name, strategy) -> None:
    arena.chunk_bytes = 4096
    build, spec = TRAINS[name], spec_of(arena, strategy)
    expected = plain_torch(task_of(regression, build), spec, adam)
    tolerance = getattr(build, "tolerance", 1e-9)
    compare(arena.train(task_of(regression, build), spec, WORLD), expected, tolerance)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("Words", "replicated"), ("Words", "stage 1"), ("TiedWords", "stage 2"), ("Words", "stage 3")],
)
def test_pieces_of_a_batch_share_the_memory_of_large_buckets(
    arena, regression, plain_torch, name, strategy
) -> None:
    """Whole epochs, so the last batch has fewer pieces, in another order of exchanges."""
    arena.chunk_bytes = 4096
    task, options = task_of(regression, TRAINS[name]), STRATEGIES[strategy]
    optimizer = {"name": "adam", "lr": 0.01, "eps": EPS}

    def spec(**train):
        return arena.spec(job={"steps": 9}, optimizer=optimizer, train=train, **options)

    expected = plain_torch(task, spec(), adam)
    compare(arena.train(task, spec(grad_accumulation=3), WORLD), expected, 1e-9)


def refusing(table):
    return [
        pytest.param(build, strategy, message, remedy, id=f"{build.__name__}-{strategy}")
        for build, (strategies, message, remedy) in table.items()
        for strategy in ends(strategies)
    ]


@pytest.mark.parametrize(("build", "strategy", "message", "remedy"), refusing(REFUSED))
def test_it_is_refused_before_training(arena, regression, build, strategy, message, remedy) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        arena.start(task_of(regression, build), spec_of(arena, strategy))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("build", "strategy", "message", "remedy"), [*refusing(FAILS), *refusing(ASKS)]
)
def test_the_job_fails_with_what_it_was(
    arena, regression, build, strategy, message, remedy
) -> None:
    spec = spec_of(arena, strategy)
    ranks = [arena.start(task_of(regression, build), spec, name=f"w{at}") for at in range(WORLD)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    found = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert found, [rank.error for rank in ranks]
    assert all(re.search(message, one.message) for one in found), found
    assert all(remedy in one.remedy for one in found), found


# --- optimizers --------------------------------------------------------------------------------

OPTIMIZERS = {
    "in groups": lambda named: torch.optim.AdamW(
        [
            {"params": named[:2], "lr": 0.02},
            {"params": []},
            {"params": named[2:5], "betas": (0.5, 0.6), "weight_decay": 0.3},
            {"params": named[5:], "amsgrad": True},
        ],
        lr=0.01,
    ),
    "Adam, foreach": lambda named: torch.optim.Adam(named, lr=0.01, foreach=True),
    "AdamW, fused": lambda named: torch.optim.AdamW(named, lr=0.01, fused=True),
    "SGD, fused": lambda named: torch.optim.SGD(named, lr=0.01, momentum=0.9, fused=True),
    "Adagrad, fused": lambda named: torch.optim.Adagrad(named, lr=0.01, fused=True),
    "NAdam": lambda named: torch.optim.NAdam(named, lr=0.01),
    "Rprop": lambda named: torch.optim.Rprop(named, lr=0.01),
    "Adamax": lambda named: torch.optim.Adamax(named, lr=0.01, maximize=True),
}
"""That treat each element by itself."""


def builds(optimizer):
    return {"build_optimizer": lambda self, parameters: optimizer(list(parameters))}


@in_turn(OPTIMIZERS)
def test_it_updates_as_in_plain_torch(arena, regression, plain_torch, name, strategy) -> None:
    methods = builds(OPTIMIZERS[name])
    spec = spec_of(arena, strategy)
    expected = plain_torch(
        task_of(regression, Base), spec, lambda parameters: OPTIMIZERS[name](list(parameters))
    )
    compare(arena.train(task_of(regression, Base, **methods), spec, WORLD), expected, 1e-9)


@pytest.mark.parametrize("strategy", EVERYWHERE[:3])
def test_a_parameter_without_an_optimizer_stays_as_it_is(
    arena, regression, plain_torch, strategy
) -> None:
    def build(parameters):
        return torch.optim.AdamW(list(parameters)[2:], lr=0.01)

    spec = spec_of(arena, strategy)
    expected = plain_torch(task_of(regression, Base), spec, build)
    compare(arena.train(task_of(regression, Base, **builds(build)), spec, WORLD), expected, 1e-9)


class Closure(torch.optim.SGD):
    elementwise = True

    def step(self, closure):
        closure()
        super().step()


@pytest.mark.parametrize(
    ("optimizer", "strategies", "message", "remedy"),
    [
        (torch.optim.LBFGS, EVERYWHERE, r"LBFGS, whose step\(\) needs a closure", "AdamW"),
        (Closure, EVERYWHERE, r"Closure, whose step\(\) needs a closure", "AdamW"),
        (
            lambda named: torch.optim.Adam(named, differentiable=True),
            EVERYWHERE,
            "Adam with differentiable = True",
            "leave differentiable out",
        ),
        (
            lambda named: torch.optim.Adam(named, capturable=True),
            EVERYWHERE,
            "Adam with capturable = True, which torch does not support on a CPU",
            "leave capturable out",
        ),
        (torch.optim.Adafactor, STAGES, "Adafactor may need all of it", "replicated"),
        (
            lambda named: torch.optim.AdamW(named[1:]),
            STAGES[2:],
            r"has not been given the parameter first\.weight",
            "strategy.stage = 2",
        ),
    ],
    ids=["LBFGS", "closure", "differentiable", "capturable", "Adafactor", "incomplete"],
)
def test_an_optimizer_is_refused_before_training(
    arena, regression, optimizer, strategies, message, remedy
) -> None:
    task = task_of(regression, Base, **builds(optimizer))
    for strategy in ends(strategies):
        with pytest.raises(TaskError, match=message) as caught:
            arena.start(task, spec_of(arena, strategy))
        assert remedy in caught.value.remedy


# --- hooks of an optimizer's step --------------------------------------------------------------


class Hooked:
    """Registers a hook, which may use the model."""

    def __init__(self, kind: str, model: nn.Module | None = None) -> None:
        self.kind, self.model = kind, model

    def optimizer(self, parameters) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(list(parameters), lr=0.1)
        register = {
            "shrink": optimizer.register_step_pre_hook,
            "clip": optimizer.register_step_pre_hook,
            "clamp": optimizer.register_step_post_hook,
            "freeze": optimizer.register_step_post_hook,
        }[self.kind]
        register(getattr(self, self.kind))
        return optimizer

    def shrink(self, optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.grad.copy_(one.grad.sign() * one.grad.abs().sqrt())

    @torch.no_grad()
    def clamp(self, optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.clamp_(-0.2, 0.2)

    shrink.elementwise = clamp.elementwise = True  # type: ignore[attr-defined]

    def clip(self, optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.grad.mul_(0.05 / one.grad.norm())

    @torch.no_grad()
    def freeze(self, *_) -> None:
        self.model.first.weight[0] = 0.0


class HookedTask:
    def build_model(self):
        self.hooked.model = Base()
        return self.hooked.model

    def build_optimizer(self, parameters):
        return self.hooked.optimizer(parameters)


def hooked_task(regression, kind: str):
    task = type("Task", (HookedTask, regression), {})()
    task.hooked = Hooked(kind)
    return task


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        *(("shrink", "replicated"), ("shrink", "stage 2"), ("clamp", "stage 1")),
        *(("clamp", "stage 3"), ("clip", "replicated"), ("freeze", "replicated")),
    ],
)
def test_a_hook_of_the_step_does_what_it_does_in_plain_torch(
    arena, regression, plain_torch, kind, strategy
) -> None:
    task, spec = hooked_task(regression, kind), spec_of(arena, strategy)
    expected = plain_torch(task, spec, task.hooked.optimizer)
    ranks = [
        arena.start(hooked_task(regression, kind), spec, name=f"w{rank}") for rank in range(WORLD)
    ]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    assert [rank.error for rank in ranks] == [None] * WORLD
    compare(ranks, expected, 1e-9)


@pytest.mark.parametrize(("kind", "strategy"), [("clip", "stage 1"), ("freeze", "stage 3")])
def test_a_hook_that_may_need_whole_parameters_is_refused(arena, regression, kind, strategy):
    with pytest.raises(TaskError, match=rf"a hook of its step, Hooked\.{kind},") as caught:
        arena.start(hooked_task(regression, kind), spec_of(arena, strategy))
    assert "elementwise = True" in caught.value.remedy


@pytest.mark.parametrize(
    ("moment", "strategy"), [("on_start", "stage 2"), ("loss", "stage 1"), ("loss", "stage 3")]
)
def test_a_hook_that_is_added_later_ends_the_job_before_it_runs(
    arena, regression, moment, strategy
) -> None:
    class Late(HookedTask, regression):
        hooked = Hooked("clamp")
        due = False

        def build_optimizer(self, parameters):
            self.optimizer = super().build_optimizer(parameters)
            return self.optimizer

        def add(self):
            self.optimizer.register_step_post_hook(self.never)

        def never(self, *_):
            raise AssertionError

        def on_start(self, at):
            del at
            if moment == "on_start":
                self.add()

        def on_step(self, at):
            self.due = moment == "loss" and at.step == 3

        def loss(self, model, batch):
            if self.due:
                self.add()
            return super().loss(model, batch)

    spec = spec_of(arena, strategy)
    ranks = [arena.start(Late(), spec, name=f"w{at}") for at in range(WORLD)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    found = [rank.error for rank in ranks if isinstance(rank.error, TaskError)]
    assert found, [rank.error for rank in ranks]
    assert all("Late.never" in one.message for one in found), found
    assert {rank.run.committed_step for rank in ranks} == {0 if moment == "on_start" else 3}
