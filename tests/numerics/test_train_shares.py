"""Rows that are divided by speed train the same model, each of them once, on any strategy."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dtd.engine.control_word import Flags
from tests.numerics.sharded_training import STAGES, assert_same_weights

pytestmark = pytest.mark.numerics

TOLERANCE = 1e-12


class Told:
    """A rank's pace as a test tells it, one cost at each decision; the last one stays."""

    def __init__(self, *costs: int) -> None:
        self._costs = itertools.chain(costs, itertools.repeat(costs[-1]))

    @property
    def cost(self) -> int:
        return next(self._costs)

    def restart(self) -> None: ...

    def disturbed(self) -> None: ...

    def add(self, own_s: float, *, rows: int, steps: int) -> None: ...


SLOWING = ((0, 10, 10, 10), (0, 10, 40, 10), (0, 10, 10, 10))
"""Costs of three ranks at four decisions: none yet, equal, the second one slow, equal again."""


def started(arena, task, spec, costs=SLOWING):
    ranks = [arena.start(task, spec, name=f"w{index}") for index in range(len(costs))]
    for rank, told in zip(ranks, costs, strict=True):
        rank.run._session.pace = Told(*told)
        if rank is not ranks[0]:
            arena.copy_state(ranks[0], rank)
    return ranks


def trained(arena, task, spec, costs=SLOWING):
    ranks = arena.generation(started(arena, task, spec, costs))
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    assert len({rank.outcome.digest for rank in ranks}) == 1
    assert {(rank.outcome.rows_missing, rank.outcome.rows_repeated) for rank in ranks} == {(0, 0)}
    return ranks


def rows_of(ranks, step: int) -> list[int]:
    """The rows that each rank had in the step, or round, after which `step` were committed."""
    by_step = [{one.step: one.own_rows for one in rank.recorder.steps} for rank in ranks]
    return [own[step] for own in by_step]


def distance(first, second) -> float:
    pairs = zip(first, second, strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def spec_of(arena, *, rows=24, accumulation=1, **tables):
    """Four decisions: before the first step, and after 8, 16 and 24; an epoch has 50 rows."""
    return arena.spec(
        job={"steps": 26, "global_batch_size": rows},
        elastic={"shares": "measured"},
        train={"grad_accumulation": accumulation},
        **tables,
    )


@pytest.mark.parametrize("accumulation", [1, 3])
def test_any_shares_train_as_one_process_does(arena, regression, plain_torch, accumulation) -> None:
    spec = spec_of(arena, accumulation=accumulation, optimizer={"lr": 0.1})
    ranks = trained(arena, regression(), spec)
    expected = plain_torch(regression(), spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert distance(ranks[0].parameters(), expected.parameters()) < TOLERANCE
    assert rows_of(ranks, 16) == [8, 8, 8]
    slow = rows_of(ranks, 17)
    assert slow == {1: [11, 2, 11], 3: [9, 6, 9]}[accumulation]
    assert rows_of(ranks, 25) == [8, 8, 8]
    assert sorted(rows_of(ranks, 21)) == [0, 1, 1], "too few rows at the end of an epoch"


@STAGES
def test_a_divided_state_goes_with_any_shares(arena, regression, plain_torch, stage) -> None:
    strategy = {"name": "sharded", "stage": stage, "mirrors": 1}
    spec = spec_of(arena, accumulation=3, optimizer={"lr": 0.1}, strategy=strategy)
    ranks = trained(arena, regression(), spec)
    model = plain_torch(regression(), spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert_same_weights(ranks, SimpleNamespace(model=model, parameters=model.parameters))
    assert rows_of(ranks, 17) == [9, 6, 9]


def test_local_steps_are_merged_by_rows(arena, regression, plain_torch) -> None:
    spec = spec_of(arena, optimizer={"lr": 0.1}, strategy={"name": "local_sgd", "inner_steps": 1})
    ranks = trained(arena, regression(), spec)
    expected = plain_torch(regression(), spec, lambda p: torch.optim.SGD(p, lr=0.1))
    assert rows_of(ranks, 17) == [11, 2, 11]
    assert distance(ranks[0].parameters(), expected.parameters()) < 1e-9


@pytest.mark.parametrize("name", ["local_sgd", "diloco", "streaming_diloco"])
def test_a_round_keeps_its_shares(arena, regression, name) -> None:
    strategy = {"name": name, "inner_steps": 4}
    ranks = trained(arena, regression(), spec_of(arena, strategy=strategy))
    length = 1 if name == "streaming_diloco" else 4
    fast, slow, other = rows_of(ranks, 16 + length)
    assert slow < min(fast, other)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Measured:
    """Adds an evaluation to a task."""

    def eval_dataset(self):
        return self.rows

    def metrics(self, model, batch):
        x, y = batch
        return {"error": (((model(x) - y) ** 2).sum(), len(x))}


def test_running_statistics_are_weighted_by_rows(arena, regression) -> None:
    class Task(regression):
        def build_model(self):
            return Normed().double()

    spec = arena.spec(
        job={"steps": 1, "global_batch_size": 24}, elastic={"shares": {"w0": 4, "w2": 2}}
    )
    ranks = trained(arena, Task(), spec)
    cuts = [0, 14, 17, 24]
    assert rows_of(ranks, 1) == [14, 3, 7]
    torch.manual_seed(spec.job.seed)
    model = Task().build_model()
    rows = ranks[0].run._session.plan.share(0, rank=0, world_size=1).requests[0].rows
    mean = torch.zeros(5).double()
    for start, stop in itertools.pairwise(cuts):
        hidden = model.first(Task().rows.x[list(rows[start:stop])])
        mean += (stop - start) / 24 * 0.1 * hidden.mean(0)
    assert distance([ranks[0].model.norm.running_mean], [mean]) < TOLERANCE


def test_an_evaluation_counts_every_row_once(arena, regression) -> None:
    class Task(Measured, regression):
        pass

    spec = arena.spec(elastic={"shares": {"w0": 3}}, train={"eval_every": 3})
    ranks = trained(arena, Task(), spec)
    (alone,) = arena.train(Task(), spec, 1)
    errors = [[one.metrics["error"] for one in rank.recorder.evals] for rank in (*ranks, alone)]
    assert errors[0] == errors[1] == errors[2]
    assert errors[0] == pytest.approx(errors[3])


def test_another_generation_begins_with_what_its_ranks_know(arena, regression) -> None:
    spec = spec_of(arena)
    ranks = started(arena, regression(), spec, costs=((10,), (40,), (10,)))
    for rank in ranks:
        rank.recorder.ask = lambda step: Flags(yield_=step == 3)
    arena.generation(ranks)
    assert [rank.outcome.kind for rank in ranks] == ["yielded"] * 3
    ended = ranks[0].run.committed_step
    rest = arena.generation(ranks[:2], generation=2)
    assert [rank.error for rank in rest] == [None, None]
    assert rows_of(ranks, 1) == [11, 2, 11]
    assert rows_of(rest, ended + 1) == [20, 4]
    assert {(rank.outcome.rows_missing, rank.outcome.rows_repeated) for rank in rest} == {(0, 0)}


def test_changes_and_settings_without_effect_are_told_by_one_rank(arena, regression) -> None:
    ranks = trained(arena, regression(), spec_of(arena), costs=((10,), (40,), (10,)))
    (told,) = [message for event, message in ranks[0].recorder.warnings if event[:6] == "shares"]
    assert told.startswith("ranks 0 to 2 have 11, 2, 11 of 24 rows, not 8, 8, 8: rank 1 needs 4.00")
    assert not ranks[1].recorder.warnings

    spec = arena.spec(elastic={"shares": {"nas": 3}})
    (rank,) = arena.train(regression(), spec, 1)
    event, message = rank.recorder.warnings[0]
    assert event == "shares_unused"
    assert "names nas, and the workers are w0" in message

    ranks = arena.train(regression(), arena.spec(elastic={"shares": "measured"}), 5)
    event, message = ranks[0].recorder.warnings[0]
    assert event == "shares_unused"
    assert "8 rows are divided equally: 5 workers need 2 each" in message
