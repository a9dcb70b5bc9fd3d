"""A mistake in the evaluation: found before training, and never at the price of a checkpoint."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from dtd.checkpoint.format import JobFolder, list_checkpoints, newest_complete
from dtd.errors import RingBroken, TaskError

pytestmark = pytest.mark.numerics


class Fails(Exception):
    """An exception of the task."""


def evaluated(regression, measure=None):
    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

        def eval_dataset(self):
            return self.rows

    if measure is not None:
        Task.metrics = lambda self, model, batch: measure(model, batch)
    return Task(48)


def saved(arena, name="w0"):
    return [
        path.name[-2:] for path in list_checkpoints(arena.directory / name / "checkpoints", JOB)
    ]


JOB = "job"
TRIED = {"sanity_batches": 2}


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        ({"accuracy": 0.5}, "returned 'accuracy': 0.5.*evaluating 2 batches before training"),
        ({"accuracy": (torch.ones(3), 3)}, "returned for 'accuracy' what is no number"),
        ([1], r"returned '': \[1\]"),
    ],
)
def test_metrics_of_a_wrong_shape_are_found_in_warm_up(arena, regression, returned, why) -> None:
    with pytest.raises(TaskError, match=why):
        arena.start(evaluated(regression, lambda *_: returned), arena.spec(train=TRIED))


def test_a_misspelled_metric_is_found_in_warm_up(arena, regression) -> None:
    task = evaluated(regression, lambda *_: {"accuracy": (1.0, 2)})
    with pytest.raises(TaskError, match=r'has accuracy, loss; did you mean "accuracy"?'):
        arena.start(task, arena.spec(train=TRIED, checkpoint={"best_metric": "acuracy"}))
    with pytest.raises(TaskError, match="early_stop_metric is 'acc', and the evaluation has"):
        arena.start(task, arena.spec(train={**TRIED, "early_stop_metric": "acc"}))
    with pytest.raises(TaskError, match="best_metric is 'loss', and the task has no eval_dataset"):
        arena.start(regression(), arena.spec(train=TRIED, checkpoint={"best_metric": "loss"}))
    arena.start(task, arena.spec(train=TRIED, checkpoint={"best_metric": "accuracy"}))


def test_trying_leaves_no_trace(arena, regression) -> None:
    batches = []

    def measure(model, batch):
        batches.append(len(batch[0]))
        torch.rand(3), random.random()
        model[1].num_batches_tracked.add_(1)
        return {"accuracy": (1.0, 2)}

    task = evaluated(regression, measure)
    spec = arena.spec(train={**TRIED, "eval_batch_size": 20})
    state, python = torch.get_rng_state(), random.getstate()
    tried = arena.start(task, spec, job_id="a")
    assert batches == [20, 20]
    off = arena.start(evaluated(regression), arena.spec(), name="off", job_id="b")
    assert tried.digest == off.digest
    torch.set_rng_state(state)
    random.setstate(python)
    again = arena.start(task, spec, name="again", job_id="c")
    assert random.getstate() == python
    assert again.digest == tried.digest
    assert all(module.training for module in tried.model.modules())


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("step", [4, 9])
def test_an_evaluation_that_fails_finds_its_state_saved(
    arena, regression, world_size, step
) -> None:
    """In the middle, where it was due with a checkpoint, and after the last step."""
    ranks = []

    def measure(*_):
        if ranks and ranks[0].run.committed_step == step:
            raise Fails
        return {"accuracy": (1.0, 2)}

    task = evaluated(regression, measure)
    spec = arena.spec(train={"eval_every": 4}, checkpoint={"every_steps": 4, "keep": 9})
    ranks += [arena.start(task, spec, name=f"w{i}") for i in range(world_size)]
    for rank in ranks[1:]:
        arena.copy_state(ranks[0], rank)
    arena.generation(ranks)
    assert {type(rank.error) for rank in ranks} <= {Fails, RingBroken}
    for rank in ranks:
        rank.run.close()
    assert saved(arena)[0] == f"0{step}"
    found = newest_complete(JobFolder(arena.directory / "w0/checkpoints", JOB))
    assert found is not None
    assert found.manifest.step == step
    assert found.manifest.metrics == {}
    assert ranks[0].recorder.checkpoints[-1].step == step


def test_metrics_get_into_manifests_that_are_written_already(arena, regression) -> None:
    task = evaluated(regression, lambda *_: {"accuracy": (1.0, 2)})
    spec = arena.spec(train={"eval_every": 4}, checkpoint={"every_steps": 4, "keep": 9})
    ranks = arena.train(task, spec, 2)
    records = ranks[0].recorder.checkpoints
    assert [record.step for record in records] == [4, 8, 9]
    evals = [record.metrics for record in ranks[0].recorder.evals]
    assert [record.metrics for record in records] == evals
    assert (
        newest_complete(JobFolder(arena.directory / "w0/checkpoints", JOB)).manifest.metrics
        == evals[-1]
    )


def test_the_best_is_kept_by_metrics_that_came_later(arena, regression) -> None:
    values = iter([0.0, 0.0, 5.0, 1.0, 1.0, 1.0])
    task = evaluated(regression, lambda *_: {"accuracy": (next(values), 1)})
    spec = arena.spec(
        job={"steps": 8},
        train={"eval_every": 2, "eval_batch_size": 48, "sanity_batches": 2},
        checkpoint={"every_steps": 2, "keep": 1, "best_metric": "accuracy"},
    )
    arena.train(task, spec, 1)
    assert saved(arena) == ["08", "04"]


def test_what_an_evaluation_changes_in_buffers_is_put_back_and_named(arena, regression) -> None:
    def measure(model, batch):
        model[1].running_mean.add_(float(batch[0].sum()))
        return {"accuracy": (1.0, 2)}

    ranks = arena.train(evaluated(regression, measure), arena.spec(train={"eval_every": 4}), 2)
    plain = arena.train(evaluated(regression), arena.spec(), 2, job_id="plain")
    assert {rank.outcome.digest for rank in ranks} == {plain[0].outcome.digest}
    told = dict(ranks[0].recorder.warnings)["buffers_put_back"]
    assert "1.running_mean" in told
