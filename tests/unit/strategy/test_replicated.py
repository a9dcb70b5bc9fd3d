"""Replicated training by itself: what is a rank's own goes forward, or back."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from dtd.strategy.api import LossSum, Part
from dtd.strategy.codec.api import World
from dtd.strategy.replicated import Replicated
from dtd.strategy.scalars import StepScalars
from tests.numerics.example_codecs import Rounding

CPU = torch.device("cpu")


class Alone:
    """The ring of one rank."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def start(self, bucket: int, done=None) -> None:
        self.started.append(bucket)
        if done is not None:
            done()

    def wait(self, bucket: int) -> None:
        """Whoever waits may do so before it is handed over."""


class Work:
    """A computation whose gradient is what the test says."""

    def __init__(self, model: nn.Linear, gradient: float) -> None:
        self._model, self._gradient = model, gradient
        self._sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        self.changed = False

    def backward(self, update: str, number: int, *, last) -> LossSum:
        last()
        (self._model.weight * self._gradient).sum().backward()
        return LossSum(loss_sum=2.0, weight=1.0)

    def write_scalars(self, scalars, sums, present) -> None:
        scalars.write(loss_sum=sums.loss_sum, weight=sums.weight, present=present)

    def tentative_update(self):
        return contextlib.nullcontext()

    def begin_update(self, weight: float) -> float:
        return 1.0

    def clip(self, norm: float) -> float:
        return 1.0

    def optimizer(self, update: str):
        return self._sgd

    def change_state(self, scalars) -> None:
        self.changed = True

    def update(self, update: str) -> None:
        self._sgd.step()


@pytest.fixture
def model():
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


@pytest.fixture
def replicated(model):
    made = Replicated(
        [Part(name="", named=[("weight", model.weight)], places=[0])],
        CPU,
        StepScalars(parameters=1, buffer_elements=0, buffer_words=0),
        codec=Rounding,
        bucket_bytes=64,
        first_bucket_bytes=64,
    )
    made.regroup(World())
    yield made
    made.close()


def computed(replicated: Replicated, work: Work) -> None:
    """A step, up to where all its results are here."""
    ring = Alone()
    assert len(replicated.exchanges(0, [""])) == 2
    replicated.begin(lambda: None, 1.0)
    replicated.compute(work, ring)
    replicated.collect(ring)
    assert sorted(ring.started) == [0, 1]


def committed(replicated: Replicated, work: Work) -> None:
    computed(replicated, work)
    stats = replicated.apply(work)
    assert (stats.finite, work.changed) == (True, True)
    replicated.commit()
    replicated.release()


EXACT, LOST = 1.0, 2.0**-9
"""A gradient, and a quarter of the unit in its last place, which is rounded away."""


def test_what_one_step_loses_the_next_one_adds(replicated, model) -> None:
    committed(replicated, Work(model, EXACT + LOST))
    assert model.weight.item() == -EXACT
    committed(replicated, Work(model, EXACT + LOST))
    committed(replicated, Work(model, EXACT + 2 * LOST))
    assert model.weight.item() == pytest.approx(-(3 * EXACT + 4 * LOST), abs=LOST)


def test_a_step_that_is_redone_finds_local_state_as_it_was(replicated, model) -> None:
    committed(replicated, Work(model, EXACT + LOST))
    computed(replicated, Work(model, EXACT + LOST))
    replicated.rollback()
    replicated.release()
    committed(replicated, Work(model, EXACT + LOST))
    # Two quarters make a tie, which is rounded down; a third one would round it up.
    assert model.weight.item() == -2 * EXACT


def test_local_state_of_a_first_step_that_is_redone_is_zero(replicated, model) -> None:
    computed(replicated, Work(model, EXACT + LOST))
    replicated.rollback()
    replicated.release()
    computed(replicated, Work(model, LOST))
    assert model.weight.grad is not None
    assert model.weight.grad.item() == LOST


def test_local_state_is_zero_once_memory_holds_another_state(replicated, model) -> None:
    committed(replicated, Work(model, EXACT + LOST))
    replicated.replaced()
    computed(replicated, Work(model, LOST))
    assert model.weight.grad is not None
    assert model.weight.grad.item() == LOST


@pytest.mark.parametrize("gradient", [float("inf"), float("nan")])
def test_gradients_that_are_not_finite_update_nothing(replicated, model, gradient) -> None:
    work = Work(model, gradient)
    computed(replicated, work)
    stats = replicated.apply(work)
    assert (stats.finite, work.changed, model.weight.item()) == (False, False, 0.0)
    replicated.rollback()
    replicated.commit()
    replicated.release()
    committed(replicated, Work(model, EXACT))
    assert model.weight.item() == -EXACT
