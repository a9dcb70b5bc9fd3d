"""A model's own `state_dict()` decides nothing: the state is the model's parameters and buffers."""

from __future__ import annotations

import pytest
import torch

from dtd.engine.control_word import Flags
from tests.numerics.odd_models import Base

pytestmark = pytest.mark.numerics

MOMENTUM = {"name": "sgd", "lr": 0.1, "momentum": 0.9}


class Partial(Base):
    """It saves the last layer alone."""

    def state_dict(self, *args, **kwargs):
        whole = super().state_dict(*args, **kwargs)
        return {name: value for name, value in whole.items() if name.startswith("last.")}


class Hooked(Base):
    """A hook takes one layer out."""

    def extra(self):
        self.register_state_dict_post_hook(drop_second)


def drop_second(module, state, prefix, metadata) -> None:
    for name in [name for name in state if name.startswith("second.")]:
        del state[name]


class Copied(Base):
    """It saves narrower copies."""

    def extra(self):
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64))

    def state_dict(self, *args, **kwargs):
        return {name: one.half() for name, one in super().state_dict(*args, **kwargs).items()}


class Nothing(Base):
    def state_dict(self, *args, **kwargs):
        return {}


EACH = pytest.mark.parametrize("build", [Partial, Hooked, Copied, Nothing])


def task_of(regression, build):
    class Task(regression):
        def build_model(self):
            return build()

    return Task()


@EACH
@pytest.mark.parametrize("strategy", [{}, {"name": "sharded", "stage": 3, "mirrors": 0}])
def test_a_resumed_job_ends_as_one_that_never_stopped(arena, regression, build, strategy) -> None:
    task = task_of(regression, build)
    spec = arena.spec(job={"steps": 10}, optimizer=MOMENTUM, strategy=strategy)
    (whole,) = arena.train(task, spec, 1, job_id="whole")
    first = arena.start(task, spec, job_id="halves", ask=lambda step: Flags(stop=step == 5))
    arena.generation([first])
    second = arena.start(task, spec, job_id="halves")
    held = second.run.held()
    assert (held.where, held.step) == ("checkpoint", 6)
    second.run.adopt_local(held.generation, held.step)
    arena.generation([second], generation=2)
    assert second.outcome.digest == whole.outcome.digest
    if second.replica.shards is None:
        pairs = zip(second.parameters(), whole.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


@EACH
def test_a_joiner_has_all_of_the_state(arena, regression, build) -> None:
    spec = arena.spec(job={"steps": 10}, optimizer=MOMENTUM)
    task = task_of(regression, build)
    first = arena.start(task, spec, name="w0", ask=lambda step: Flags(yield_=step == 4))
    arena.generation([first])
    joiner = arena.start(task, spec, name="w1")
    arena.copy_state(first, joiner)
    pairs = zip(joiner.parameters(), first.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    ranks = arena.generation([first, joiner], generation=2, voters=frozenset({0}))
    assert [rank.outcome.kind for rank in ranks] == ["finished", "finished"]


def test_the_averages_of_weights_are_named_as_the_model_names_them(arena, regression) -> None:
    rank = arena.start(task_of(regression, Copied), arena.spec(train={"ema_decay": 0.5}))
    assert set(rank.replica.averages.named) == {name for name, _ in rank.model.named_parameters()}
