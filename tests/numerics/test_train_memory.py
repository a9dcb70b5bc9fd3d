"""Memory that is measured in a step, beside what the strategy predicts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.doctor.memory import PARTS

pytestmark = pytest.mark.numerics

WIDTH, ROWS = 64, 8
LAYERS = 16
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4
SLACK_BYTES = 2048
"""Scalars, step counters and the padding of buckets."""


class Task:
    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(64, WIDTH, generator=generator)

    def build_model(self):
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        return nn.Sequential(*(one for layer in layers for one in (layer, nn.Tanh())))

    def train_dataset(self):
        return torch.utils.data.TensorDataset(self.x)

    def loss(self, model, batch):
        return model(batch[0]).square().mean()


def trained(arena, world_size=2, **tables):
    job = {"steps": 4, "global_batch_size": ROWS * world_size}
    spec = arena.spec(job=job, optimizer={"name": "adamw"}, **tables)
    return arena.train(Task(), spec, world_size)


def near(found: int, expected: int) -> bool:
    return expected <= found <= expected + SLACK_BYTES


def test_a_replicated_job_holds_what_its_strategy_predicts(arena):
    (rank,) = trained(arena, world_size=1)
    found = rank.recorder.memory[0]
    assert set(found.measured) == set(PARTS)
    assert found.predicted["parameters"] == found.predicted["gradients"] == PARAMETERS
    assert found.measured["parameters"] == found.measured["gradients"] == PARAMETERS
    assert found.predicted["optimizer"] == 2 * PARAMETERS
    assert near(found.measured["optimizer"], 2 * PARAMETERS)
    assert found.measured["process"] > 10 * PARAMETERS


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sharded_job_holds_its_share(arena, stage):
    strategy = {"name": "sharded", "stage": stage, "mirrors": 0}
    for rank in trained(arena, world_size=2, strategy=strategy):
        assert rank.recorder.memory, "another rank of this process was measured"
        found = rank.recorder.memory[0]
        assert found.predicted["optimizer"] == PARAMETERS, "half of it"
        assert near(found.measured["optimizer"], PARAMETERS)
        if stage == 1:
            assert found.measured["gradients"] == PARAMETERS
        else:
            assert found.measured["gradients"] < PARAMETERS
            assert found.measured["gradients"] <= found.predicted["gradients"] + SLACK_BYTES
        if stage < 3:
            assert near(found.measured["parameters"], PARAMETERS)


def test_the_copy_for_a_checkpoint_is_counted_once_it_is_made(arena):
    (rank,) = trained(arena, world_size=1, checkpoint={"every_steps": 3})
    before, after = rank.recorder.memory[0], rank.recorder.memory[-1]
    assert before.measured["snapshots"] == 0
    assert near(after.measured["snapshots"], 3 * PARAMETERS)
    assert near(after.predicted["snapshots"], 3 * PARAMETERS)


class Profiles(Task):
    """Profiles its first three steps."""

    def __init__(self):
        super().__init__()
        self.steps = 0
        self.profiler = torch.autograd.profiler.profile()

    def loss(self, model, batch):
        self.steps += 1
        if self.steps == 1:
            self.profiler.__enter__()
        elif self.steps == 3:
            self.profiler.__exit__(None, None, None)
        return super().loss(model, batch)


def test_a_task_that_runs_the_profiler_is_not_disturbed(arena):
    task = Profiles()
    (rank,) = arena.train(task, arena.spec(job={"steps": 4}), 1)
    assert rank.recorder.memory[0].measured["activations"] > 0
    assert task.profiler.kineto_results.events()
