"""Training that begins again in the same process: what a task refers to stays what is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.engine.step_protocol import FRESH
from dtd.errors import TaskError
from tests.numerics.sharded_training import sharded

pytestmark = pytest.mark.numerics


class Clamping:
    """Keeps weights small in a hook, by the model that it has built itself."""

    def build_model(self):
        return self.keep(super().build_model())

    def keep(self, model):
        self.model = model
        return model

    def parameters_in_range(self):
        return self.model.parameters()

    def build_optimizer(self, parameters):
        optimizer = torch.optim.Adam(parameters, lr=0.1)
        optimizer.register_step_post_hook(self.clamp)
        return optimizer

    @torch.no_grad()
    def clamp(self, *_) -> None:
        for parameter in self.parameters_in_range():
            parameter.clamp_(-0.2, 0.2)


class InAContainer(Clamping):
    def __init__(self):
        super().__init__()
        self.models = []

    def keep(self, model):
        self.models.append(model)
        return model

    def parameters_in_range(self):
        return self.models[-1].parameters()


class AsAList(Clamping):
    def keep(self, model):
        self.kept = list(model.parameters())
        return model

    def parameters_in_range(self):
        return self.kept


class Around:
    """A task that hands on what it is asked to another one."""

    def __init__(self, task):
        self.task = task

    def __getattr__(self, name):
        return getattr(self.task, name)


class AModule(Clamping, nn.Module):
    """A task that is a module, with the model in it."""

    def __init__(self):
        super().__init__()
        self.rows = self.rows_of()


def task_of(kind, regression):
    rows = regression().rows
    return type("Task", (kind, regression), {"rows_of": lambda self: rows})()


def again(rank) -> None:
    rank.run.forget()
    rank.run.adopt_local(*FRESH)


@pytest.mark.parametrize("wrap", [lambda task: task, Around])
@pytest.mark.parametrize("kind", [Clamping, InAContainer, AsAList, AModule])
def test_a_hook_changes_the_model_that_is_trained(arena, regression, kind, wrap) -> None:
    spec = arena.spec(job={"steps": 4})
    (rank,) = arena.train(wrap(task_of(kind, regression)), spec, 1)
    expected = rank.digest
    assert max(float(one.abs().max()) for one in rank.parameters()) <= 0.2
    again(rank)
    arena.generation([rank], generation=2)
    assert rank.error is None
    assert rank.digest == expected


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_task_of_a_sharded_job_has_the_model_that_is_trained(arena, regression, stage) -> None:
    class Task(Clamping, regression):
        def clamp(self, optimizer, *_):
            with torch.no_grad():
                for parameter in optimizer.param_groups[0]["params"]:
                    parameter.clamp_(-0.2, 0.2)

        clamp.elementwise = True  # type: ignore[attr-defined]

        def loss(self, model, batch):
            assert id(model) == id(self.model)
            return super().loss(model, batch)

    spec = sharded(arena, mirrors=0, stage=stage, job={"steps": 4})
    ranks = [arena.start(Task(), spec, name=f"w{rank}") for rank in range(2)]
    arena.copy_state(*ranks)
    arena.generation(ranks)
    expected = ranks[0].outcome.digest
    for rank in ranks:
        again(rank)
    arena.generation(ranks, generation=2)
    assert [rank.error for rank in ranks] == [None, None]
    assert {rank.outcome.digest for rank in ranks} == {expected}


def test_a_frozen_part_may_be_that_of_every_model(arena, regression) -> None:
    class Task(regression):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(6, 6).double().requires_grad_(requires_grad=False)

        def build_model(self):
            return nn.Sequential(self.frozen, super().build_model())

    spec = arena.spec(job={"steps": 4})
    (rank,) = arena.train(Task(), spec, 1)
    expected = rank.digest
    again(rank)
    arena.generation([rank], generation=2)
    assert rank.digest == expected


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_model_that_is_never_made_anew_is_named(arena, regression, stage) -> None:
    class Task(regression):
        def __init__(self):
            super().__init__()
            self.model = super().build_model()

        def build_model(self):
            return self.model

    spec = sharded(arena, mirrors=0, stage=stage) if stage else arena.spec()
    (rank,) = arena.train(Task(), spec, 1)
    with pytest.raises(TaskError, match=r"the same parameter 0\.weight as before") as caught:
        again(rank)
    assert "build_model()" in caught.value.remedy
