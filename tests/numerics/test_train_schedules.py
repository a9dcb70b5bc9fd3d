"""A schedule that the task builds: plain torch's rates, through breaks, joiners and checkpoints."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as ls

from dtd.errors import CheckpointError, RingBroken, TaskError
from dtd.train.optim.schedule import TaskSchedule, schedule_of
from dtd.train.record import Flags, InitFrom
from tests.numerics.cuts import Cut

pytestmark = pytest.mark.numerics

STEPS = 14

SCHEDULES = {
    "step": lambda o, _n: ls.StepLR(o, step_size=3, gamma=0.5),
    "multistep": lambda o, _n: ls.MultiStepLR(o, milestones=[2, 2, 9], gamma=0.3),
    "onecycle": lambda o, n: ls.OneCycleLR(o, max_lr=0.3, total_steps=n),
    "cyclic": lambda o, _n: ls.CyclicLR(o, base_lr=0.01, max_lr=0.2, step_size_up=3),
    "cosine": lambda o, n: ls.CosineAnnealingLR(o, T_max=n),
    "restarts": lambda o, _n: ls.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2),
    "lambda": lambda o, n: ls.LambdaLR(o, lambda done: 1 - done / (2 * n)),
    "sequence": lambda o, n: ls.SequentialLR(
        o,
        [ls.LinearLR(o, start_factor=0.1, total_iters=4), ls.CosineAnnealingLR(o, T_max=n - 4)],
        milestones=[4],
    ),
    "chained": lambda o, _n: ls.ChainedScheduler(
        [ls.ExponentialLR(o, gamma=0.9), ls.ConstantLR(o, factor=0.5, total_iters=5)]
    ),
    "averaged": lambda o, _n: torch.optim.swa_utils.SWALR(o, swa_lr=0.2, anneal_epochs=5),
}


def groups(parameters):
    """Two groups with rates of their own."""
    first, *rest = parameters
    return torch.optim.SGD(
        [{"params": [first], "lr": 0.02}, {"params": rest}], lr=0.1, momentum=0.9, fused=True
    )


def scheduled(regression, schedule):
    class Task(regression):
        def build_optimizer(self, params):
            return groups(params)

        def build_schedule(self, optimizer, total_steps):
            return schedule(optimizer, total_steps)

    return Task(48)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_rank_is_plain_torch_and_a_broken_job_ends_alike(
    arena, regression, plain_torch, name
) -> None:
    task, spec = scheduled(regression, SCHEDULES[name]), arena.spec(job={"steps": STEPS})
    seen = []

    def after(optimizer, _model):
        schedule = SCHEDULES[name](optimizer, STEPS)

        def step() -> None:
            seen.append(optimizer.param_groups[0]["lr"])
            schedule.step()

        return step

    expected = plain_torch(task, spec, groups, after=after)
    (whole,) = arena.train(task, spec, 1, job_id="whole")
    assert all(map(torch.equal, whole.parameters(), expected.parameters()))
    assert [record.lr for record in whole.recorder.steps] == seen
    assert len(set(seen)) > 1

    broken = arena.start(task, spec, name="broken", job_id="broken")
    arena.generation([broken], wrap=lambda _, inner: Cut(inner, 5))
    assert isinstance(broken.error, RingBroken)
    broken.run.adopt_local(1, 5)
    joiner = arena.start(task, spec, name="joiner", job_id="broken")
    arena.copy_state(broken, joiner)
    assert joiner.digest == broken.digest
    arena.generation([joiner], generation=2)
    assert joiner.outcome.digest == whole.outcome.digest


@pytest.mark.parametrize("name", ["onecycle", "lambda", "sequence"])
def test_it_goes_on_from_a_checkpoint(arena, regression, name) -> None:
    task, spec = scheduled(regression, SCHEDULES[name]), arena.spec(job={"steps": STEPS})
    (whole,) = arena.train(task, spec, 1, job_id="whole")
    first = arena.start(task, spec, job_id="halves", ask=lambda step: Flags(stop=step == 5))
    arena.generation([first])
    first.run.close()
    second = arena.start(task, spec, job_id="halves")
    held = second.run.held()
    second.run.adopt_local(held.generation, held.step)
    arena.generation([second], generation=2)
    assert second.outcome.digest == whole.outcome.digest


def test_a_skipped_step_does_not_move_it_on(arena, regression) -> None:
    class Task(regression):
        def build_schedule(self, optimizer, total_steps):
            return ls.ExponentialLR(optimizer, gamma=0.5)

        def loss(self, model, batch):
            x, _ = batch
            poison = (x == self.rows.x[5]).all(1).any()
            return super().loss(model, batch) * (float("nan") if poison else 1.0)

    spec = arena.spec(job={"epochs": 1, "global_batch_size": 10})
    ranks = arena.train(Task(), spec, 2)
    records = ranks[0].recorder.steps
    assert sum(record.skipped for record in records) == 1
    rate = 0.1
    for record in records:
        assert record.lr == pytest.approx(rate)
        rate *= 1.0 if record.skipped else 0.5


def test_schedules_that_cannot_be_stepped_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer, other = (torch.optim.SGD([weight], lr=0.1) for _ in range(2))

    class Task:
        def __init__(self, built) -> None:
            self.built = built

        def build_schedule(self, optimizer, total_steps):
            return self.built

    for built, why in (
        (ls.ReduceLROnPlateau(optimizer), "ReduceLROnPlateau, which needs a metric"),
        (None, "returned a NoneType"),
        (ls.StepLR(other, 3), "of another optimizer"),
    ):
        with pytest.raises(TaskError, match=why):
            schedule_of(Task(built), optimizer, 9)
    odd = ls.StepLR(optimizer, 3)
    odd.keeps = {"set": {1}}
    with pytest.raises(TaskError, match="keeps keeps as a set"):
        schedule_of(Task(odd), optimizer, 9)
    assert schedule_of(object(), optimizer, 9) is None


def test_a_schedule_that_is_over_fails_in_words() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = TaskSchedule(ls.OneCycleLR(optimizer, max_lr=1.0, total_steps=2))
    optimizer.step()
    schedule.step()
    schedule.step()
    with pytest.raises(TaskError, match=r"build_schedule.. raised ValueError: Tried to step 3"):
        schedule.step()


def test_every_value_comes_back_as_it_was() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    source, target = (TaskSchedule(ls.StepLR(optimizer, 3)) for _ in range(2))
    source._scheduler.odd = {1: (float("inf"), float("-inf"), None), "a": [True, 1.5, {}]}
    source._scheduler.rate = [torch.tensor(0.1), np.float32(0.1)]
    target._scheduler.odd = target._scheduler.rate = None
    tensors = {}
    target.load(json.loads(json.dumps(source.state(tensors), allow_nan=False)), tensors)
    assert target._scheduler.odd == source._scheduler.odd
    assert target._scheduler.rate == source._scheduler.rate
    assert isinstance(target._scheduler.rate[1], np.float32)


def test_another_schedules_state_is_refused(arena, regression) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = TaskSchedule(ls.StepLR(optimizer, 3))
    for state in ({"step": 1}, None, TaskSchedule(ls.CosineAnnealingLR(optimizer, 3)).state({})):
        with pytest.raises(CheckpointError, match="another schedule than StepLR"):
            schedule.load(state, {})
    broken = {name: {"dict": 3} for name in schedule.state({})}
    with pytest.raises(CheckpointError, match="is broken"):
        schedule.load(broken, {})

    spec = arena.spec(job={"steps": 4})
    arena.train(regression(), spec, 1, job_id="parent")
    child = arena.start(
        scheduled(regression, SCHEDULES["step"]),
        spec,
        name="w0",
        job_id="child",
        init_from=InitFrom(job_id="parent", step=None, mode="resume"),
    )
    held = child.run.held()
    with pytest.raises(
        CheckpointError, match="no schedule of the task, and this job's task has one"
    ):
        child.run.adopt_local(held.generation, held.step)
