"""Every row of every epoch counts once, whatever breaks, joins, leaves or starts from disk.

A job goes through thirty generations of one to eight ranks.  Most end in the middle of a step:
some rank's ring is cut somewhere.  What the next one starts from is decided by the coordinator's
own rule, from what the survivors report.  Two audits: the ledger, and the trained parameters, which
are those of one process that was never disturbed (but for the rounding of sums in another order).
"""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import pytest
import torch

from dtd.cluster.generation import roster
from dtd.cluster.records import Job, Worker
from dtd.cluster.transitions import WorkerState
from dtd.errors import RingBroken
from dtd.train.record import InitFrom
from dtd.wire import messages as m
from tests.registrations import registration

pytestmark = pytest.mark.numerics

GENERATIONS = 30
COLD_RESTARTS = (10, 20)
ROWS, BATCH, EPOCHS = 50, 8, 15
CUTS = ("open_step", "start", "wait", "gather", "close_step")


class CutOnce:
    """A collective that raises in its n-th call of one method from a step on."""

    def __init__(self, inner: Any, *, method: str, step: int, calls: int) -> None:
        self._inner, self._method, self._step, self._calls = inner, method, step, calls
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name != self._method:
            return value

        def call(*arguments: Any) -> Any:
            with self._lock:
                self._calls -= self._inner.nodes[0].machine.step >= self._step
                cut = self._calls == 0
            if cut:
                raise RingBroken("cut by the test")
            return value(*arguments)

        return call


def start_of_next(ranks: list[Any], generation: int, start: tuple[int, int]) -> tuple[int, int]:
    """The coordinator's decision when these have frozen."""
    job = Job(id="job", spec={}, generation=generation)
    job.start_generation, job.start_step = start
    return roster.start_key(job, [_report(rank, generation) for rank in ranks])


def _report(rank: Any, generation: int) -> Worker:
    held = rank.run.held()
    key = (held.generation, held.step)
    worker = Worker(registration=registration(name="w", incarnation=1), state=WorkerState.FROZEN)
    worker.holdings.frozen_in = generation
    worker.holdings.held = m.Held(
        job="job", generation=key[0], step=key[1], digest="", where=held.where
    )
    worker.holdings.prepared = rank.run.prepared_key or key
    return worker


class Story:
    """One job, from one generation to the next."""

    def __init__(self, arena: Any, task: Any, spec: Any, seed: int) -> None:
        self.rng = random.Random(seed)
        self.arena, self.task, self.spec = arena, task, spec
        self.ranks: list[Any] = []
        self.living: list[Any] = []
        self.start = (0, 0)
        self.number = 0

    def form(self, size: int) -> None:
        """The next generation: survivors adopt, newcomers fetch."""
        survivors = self.ranks[: self.rng.randint(1, size)] if self.ranks else []
        if not survivors:
            survivors = [self.newcomer()]
        for rank in survivors:
            rank.run.adopt_local(*self.start)
        joiners = [self.newcomer() for _ in range(size - len(survivors))]
        for rank in joiners:
            self.arena.copy_state(survivors[0], rank)
        self.ranks = [*survivors, *joiners]

    def newcomer(self) -> Any:
        rank = self.arena.start(self.task, self.spec, name=f"w{len(self.arena.started)}")
        self.living.append(rank)
        return rank

    def run(self, *, cut: bool) -> None:
        """Train until the cut, or to the end; then decide what comes next."""
        self.number += 1
        victim = self.rng.randrange(len(self.ranks))
        how = {
            "method": self.rng.choice(CUTS),
            "step": self.start[1] + self.rng.randint(0, 3),
            "calls": self.rng.randint(1, 3),
        }

        def wrap(index: int, inner: Any) -> Any:
            return CutOnce(inner, **how) if cut and index == victim else inner

        self.arena.generation(self.ranks, generation=self.number, wrap=wrap)
        self.start = start_of_next(self.ranks, self.number, self.start)

    def die(self) -> None:
        """All ranks at once; the newest checkpoint is what is left.

        Whoever is dead writes no more: a checkpoint under way is published now, or never.
        """
        for rank in self.living:
            rank.run.close()
        self.living = []
        self.ranks = [self.newcomer()]
        held = self.ranks[0].run.held()
        assert held.where == "checkpoint"
        self.start = (held.generation, held.step)


def test_every_row_counts_once(arena, regression, tmp_path) -> None:
    task = regression(ROWS)
    spec = arena.spec(
        job={"epochs": EPOCHS, "global_batch_size": BATCH},
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        checkpoint={"every_steps": 3, "keep": 2, "directory": str(tmp_path / "checkpoints")},
    )
    (undisturbed,) = arena.train(task, spec, 1, job_id="undisturbed")

    story = Story(arena, task, spec, seed=11)
    sizes = [8, 3, 8] + [story.rng.randint(1, 8) for _ in range(GENERATIONS - 3)]
    broken = 0
    for index, size in enumerate(sizes):
        story.form(size)
        story.run(cut=True)
        broken += any(isinstance(rank.error, RingBroken) for rank in story.ranks)
        if index in COLD_RESTARTS:
            story.die()
        if story.ranks[0].outcome is not None:
            break
    assert broken >= GENERATIONS // 2
    while any(rank.outcome is None for rank in story.ranks):
        story.form(4)
        story.run(cut=False)

    for rank in story.ranks:
        assert (rank.outcome.rows_missing, rank.outcome.rows_repeated) == (0, 0)
    assert len({rank.outcome.digest for rank in story.ranks}) == 1
    for mine, theirs in zip(story.ranks[0].parameters(), undisturbed.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def counts(ranks: list[Any]) -> set[tuple[int, int]]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return {(rank.outcome.rows_missing, rank.outcome.rows_repeated) for rank in ranks}


def test_a_batch_of_other_rows_than_planned_is_counted_and_told(arena, regression) -> None:
    """A loader that hands out the batch before once more: the step's number cannot tell."""
    ranks = [arena.start(regression(), arena.spec(), name=f"w{i}") for i in range(2)]
    arena.copy_state(*ranks)
    source = ranks[1].run._session.data.loader._source
    take, made = source.take, []

    def stuck() -> Any:
        made.append(take())
        return made[3 if len(made) == 5 else -1]

    source.take = stuck
    arena.generation(ranks)
    assert counts(ranks) == {(4, 4)}
    (told,) = ranks[1].recorder.warnings
    assert told[0] == "rows_not_as_planned"
    assert re.match(r"in step 5 4 rows of the plan were not used, and 4 others were; here", told[1])
    assert ranks[0].recorder.warnings[0][1] in told[1]


def test_slices_that_do_not_fit_together_are_counted(arena, regression) -> None:
    """A rank that believes to be another one loads just what it asks for."""
    ranks = [arena.start(regression(), arena.spec(), name=f"w{i}") for i in range(2)]
    arena.copy_state(*ranks)
    session = ranks[1].run._session

    class Mistaken(type(session.plan)):
        def share(self, step: int, *, rank: int, world_size: int) -> Any:
            return super().share(step, rank=rank - (step == 2), world_size=world_size)

    session.plan = Mistaken(spec=session.spec, order=session.plan.order)
    arena.generation(ranks)
    assert counts(ranks) == {(1, 1)}


def test_a_job_with_another_seed_finishes_the_epoch_in_its_order(arena, regression) -> None:
    class Task(regression):
        def __init__(self) -> None:
            super().__init__(ROWS)
            self.used: list[int] = []

        def loss(self, model: Any, batch: Any) -> Any:
            places = (batch[0][:, None] == self.rows.x[None]).all(-1).nonzero()[:, 1]
            self.used += places.tolist()
            return super().loss(model, batch)

    first, second = Task(), Task()
    arena.train(first, arena.spec(job={"steps": 4}), 1, job_id="parent")
    spec = arena.spec(job={"epochs": 2, "seed": 4})
    parent = InitFrom(job_id="parent", step=None, mode="resume")
    ranks = [
        arena.start(task, spec, name=name, job_id="child", init_from=parent)
        for task, name in ((second, "w0"), (Task(), "w1"))
    ]
    held = ranks[0].run.held()
    ranks[0].run.adopt_local(held.generation, held.step)
    arena.copy_state(*ranks)
    arena.generation(ranks, generation=2)
    assert counts(ranks) == {(0, 0)}
    joined = second.used + ranks[1].run._session.task.used
    assert sorted(first.used + joined) == sorted([*range(ROWS), *range(ROWS)])
    assert [event for event, _ in ranks[0].recorder.warnings] == ["epoch_order_kept"]
