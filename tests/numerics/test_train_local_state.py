"""What a codec keeps to itself: exact through redone steps, zero in a replica that was copied."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dtd.core.engine.step_protocol import FRESH
from dtd.errors import RingBroken
from dtd.strategy.choice import CODECS
from dtd.strategy.codec.bfloat16 import widened
from dtd.strategy.codec.narrow import NarrowCodec

pytestmark = pytest.mark.numerics

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
STEP = 5


class ErrorFeedback(NarrowCodec):
    """Rounds to bfloat16, and adds what was lost to the next step's gradients."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16, widened)
        self._errors: dict[int, torch.Tensor] = {}

    def encode(self, index, flat, wire) -> None:
        if index not in self._errors:
            self._errors[index] = torch.zeros_like(flat)
            self.local = [*self.local, self._errors[index]]
        flat.add_(self._errors[index])
        super().encode(index, flat, wire)
        self._errors[index].copy_(flat - wire.float())


@pytest.fixture
def spec(arena, monkeypatch):
    monkeypatch.setitem(CODECS, "bfloat16", ErrorFeedback)
    return arena.spec(
        job={"steps": 9},
        optimizer=SGD,
        strategy={"codec": "bfloat16"},
        sync={"bucket_mib": 0.01},
    )


@pytest.fixture
def task(regression):
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))

        def loss(self, model, batch):
            x = batch[0].float()
            return ((model(x) - torch.sin(x[:, :3] + x[:, 3:])) ** 2).mean()

    return Task(48)


class Cut:
    """A collective that ends in one call of step STEP, on all ranks at once."""

    def __init__(self, inner, method: str, meeting: threading.Barrier) -> None:
        self._inner, self._method, self._meeting = inner, method, meeting

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name != self._method or self._inner.node.core.step != STEP:
            return value

        def call(*arguments):
            self._meeting.wait()
            raise RingBroken("cut by the test")

        return call


def started(arena, task, spec):
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(2)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    return ranks


def digests(ranks) -> set[str]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return {rank.outcome.digest for rank in ranks}


@pytest.mark.parametrize("methods", [("wait", "wait"), ("wait", "gather")])
def test_a_redone_step_finds_local_state_as_it_was(arena, task, spec, methods) -> None:
    """Also on a rank that had prepared the step."""
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = started(arena, task, spec)
    meeting = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda i, inner: Cut(inner, methods[i], meeting))
    assert [rank.run.committed_step for rank in ranks] == [STEP, STEP]
    for rank in ranks:
        rank.run.adopt_local(1, STEP)
    arena.generation(ranks, generation=2)
    assert digests(ranks) == undisturbed


def test_a_prepared_step_that_is_committed_later_takes_its_local_state_along(
    arena, task, spec
) -> None:
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = started(arena, task, spec)
    meeting = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, "gather", meeting))
    for rank in ranks:
        assert rank.run.prepared_key == (1, STEP + 1)
        rank.run.adopt_local(1, STEP + 1)
    arena.generation(ranks, generation=2)
    assert digests(ranks) == undisturbed


def test_a_copied_replica_begins_with_none(arena, task, spec) -> None:
    """So it goes on otherwise than one that has gone through the steps, and replicas stay equal."""
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = started(arena, task, spec)
    meeting = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, "wait", meeting))
    ranks[0].run.adopt_local(1, STEP)
    arena.copy_state(ranks[0], ranks[1])
    arena.generation(ranks, generation=2)
    (digest,) = digests(ranks)
    assert digest not in undisturbed
