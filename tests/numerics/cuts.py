"""Ranks that train, rings that break where a test wants them to, and rows that spoil a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dtd.engine.sampler import Position
from dtd.engine.step_protocol import FRESH
from dtd.errors import RingBroken
from dtd.job import JobSpec
from dtd.train.data.sampling import batch_rows
from tests.arena import Arena, Rank


class Cut:
    """A collective that raises in a call of one method in one step.

    Args:
        inner: the collective.
        step: in which one.
        method: whose call.
        call: how many calls of it are let through before.
        meet: called first, such as to wait until other ranks have come as far.
    """

    def __init__(
        self,
        inner: Any,
        step: int,
        *,
        method: str = "wait",
        call: int = 0,
        meet: Callable[[], object] = lambda: None,
    ) -> None:
        self._inner, self._method, self._step, self._left = inner, method, step, call
        self._meet = meet

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name != self._method or self._inner.nodes[0].machine.step != self._step:
            return value
        self._left -= 1
        if self._left >= 0:
            return value

        def cut(*arguments: Any) -> None:
            self._meet()
            raise RingBroken("cut by the test")

        return cut


def ranks_of(arena: Arena, task: Any, spec: JobSpec, count: int, name: str = "w") -> list[Rank]:
    """So many ranks that hold the first state."""
    ranks = [arena.start(task, spec, name=f"{name}{index}") for index in range(count)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    return ranks


def poisonous(task: Any, rows: Sequence[int]) -> Any:
    """A task like this one, whose loss is NaN for whoever has one of these rows."""

    class Poisonous(type(task)):  # type: ignore[misc]
        def loss(self, model: Any, batch: Any) -> Any:
            bad = any((x == self.rows.x[row]).all() for x in batch[0] for row in rows)
            return super().loss(model, batch) * (float("nan") if bad else 1.0)

    return Poisonous(len(task.rows))


def a_row_of_the_second_step() -> int:
    """Number of a row in the second batch of eight rows of 48, with the arena's seed."""
    return batch_rows(seed=3, position=Position(0, 8), global_batch_size=8, length=48)[0]
