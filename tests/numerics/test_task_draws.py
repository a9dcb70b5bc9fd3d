"""Random numbers of a task, from any generator: keyed by seed and place.

Ranks are threads here and share one process's generators, so jobs of one rank are compared; several
workers draw in tests/integration/test_task_draws.py.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from dtd.train.record import InitFrom

pytestmark = pytest.mark.numerics


class SeldomCropped:
    """Rows of which one in eight is cropped at random, and none of the first ones."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.arange(24, dtype=torch.float64) / 24 + row / 48
        start = random.randrange(18) if row % 8 == 7 else 0
        return values[start : start + 6], values[:3]


class OfOneGenerator(SeldomCropped):
    """Rows that draw from a generator which the dataset keeps."""

    def __init__(self) -> None:
        self.draw = torch.Generator().manual_seed(0)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        values, target = super().__getitem__(row)
        return values + torch.rand(6, generator=self.draw), target


def weights(rank) -> torch.Tensor:
    return nn.utils.parameters_to_vector(rank.parameters())


def test_rows_that_seldom_draw_are_keyed_alike(arena, regression) -> None:
    class Cropping(regression):
        def train_dataset(self):
            return SeldomCropped()

    ended = []
    for noise, loader_workers in ((1, 0), (2, 0), (3, 1)):
        random.seed(noise)
        spec = arena.spec(train={"loader_workers": loader_workers})
        ended.append(weights(arena.train(Cropping(), spec, 1)[0]))
    assert torch.equal(ended[0], ended[1])
    assert torch.equal(ended[0], ended[2])


@pytest.mark.parametrize("collates", [False, True])
def test_a_generator_of_the_datasets_own_is_told(arena, regression, collates) -> None:
    class Own(regression):
        def train_dataset(self):
            return OfOneGenerator()

    if collates:
        Own.collate = staticmethod(torch.utils.data.default_collate)
    rank = arena.train(Own(), arena.spec(), 1)[0]
    assert [event for event, _ in rank.recorder.warnings] == ["task_doubtful"]
    assert "generator of its own" in rank.recorder.warnings[0][1]


def test_a_loss_may_draw_from_every_generator(arena, regression) -> None:
    class Mixing(regression):
        def build_model(self):
            model = super().build_model()
            with torch.no_grad():
                model[0].weight.copy_(torch.from_numpy(np.random.randn(8, 6)))
                model[2].bias.fill_(random.random())
            return model

        def loss(self, model, batch):
            share = np.random.beta(0.4, 0.4) * random.random()
            return ((model(batch[0] * share) - batch[1]) ** 2).mean()

    def ended(noise: int) -> torch.Tensor:
        np.random.seed(noise)
        random.seed(noise)
        return weights(arena.train(Mixing(), arena.spec(), 1)[0])

    assert torch.equal(ended(1), ended(2))


def test_a_resumed_job_draws_as_if_it_had_not_stopped(arena, regression) -> None:
    class Noisy(regression):
        def loss(self, model, batch):
            noise = torch.from_numpy(np.random.rand(6))
            return super().loss(model, (batch[0] + noise, batch[1]))

    whole = arena.train(Noisy(), arena.spec(), 1)[0]
    arena.train(Noisy(), arena.spec(job={"steps": 4}), 1, job_id="first")
    parent = InitFrom(job_id="first", step=None, mode="resume")
    rest = arena.start(Noisy(), arena.spec(), name="w0", job_id="rest", init_from=parent)
    rest.run.adopt_local(1, 4)
    np.random.seed(99)
    arena.generation([rest], generation=2)
    assert rest.outcome.step == whole.outcome.step
    assert torch.equal(weights(rest), weights(whole))


def test_a_split_at_random_is_one_for_both_datasets(arena, regression) -> None:
    class Split(regression):
        def parts(self):
            return torch.utils.data.random_split(range(50), [40, 10])

        def train_dataset(self):
            self.trained = self.parts()[0]
            return torch.utils.data.Subset(self.rows, self.trained.indices)

        def eval_dataset(self):
            self.evaluated = self.parts()[1]
            return torch.utils.data.Subset(self.rows, self.evaluated.indices)

    first, second = Split(), Split()
    for task in (first, second):
        torch.rand(3)
        arena.start(task, arena.spec())
    assert not set(first.trained.indices) & set(first.evaluated.indices)
    assert first.trained.indices == second.trained.indices


def test_metrics_draw_the_same_in_every_evaluation(arena, regression) -> None:
    class Sampled(regression):
        def eval_dataset(self):
            return self.rows

        def metrics(self, model, batch):
            return {"sampled": (np.random.rand() + torch.rand(1), 1)}

    recorder = arena.train(Sampled(), arena.spec(train={"eval_every": 3}), 1)[0].recorder
    assert len({record.metrics["sampled"] for record in recorder.evals}) == 1
    assert len(recorder.evals) == 3
