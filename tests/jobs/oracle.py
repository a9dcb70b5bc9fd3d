"""The job of a recipe in plain torch: one process, one loop, the rows of every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from dtd.engine.sampler import row_key
from dtd.train.data.rows import NO_ROW, draw_key, seed_generators
from tests.jobs.recipe import ROWS, STEPS, Recipe
from tests.jobs.task import JOB_OPTIMIZERS, Rows, StreamedRows, Task

CLIP_NORM = 0.3
DECAY = 0.8


@dataclass(frozen=True)
class Slice:
    """Rows that go through the model at once.

    Attributes:
        rank: the rank that has them.
        epoch: keys the dataset's draws.
        rows: their numbers.
        first_row: the place of the first in its batch, which keys the loss's draws.
    """

    rank: int
    epoch: int
    rows: Sequence[int]
    first_row: int


@dataclass
class Trained:
    """A finished job.

    Attributes:
        model: with its last weights and buffers.
        optimizers: with their state.
        losses: of every step, summed over the updates.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    losses: list[float] = field(default_factory=list)


def train(
    recipe: Recipe, seed: int, steps: Iterable[Sequence[Slice]], begin: Callable[[nn.Module], None]
) -> Trained:
    """Train; `begin` sets the first weights where `build_model` leaves them open."""
    task = Task(recipe)
    data = task.train_dataset()
    seed_generators(seed)
    model = task.build_model()
    begin(model)
    parts = _optimizers(task, recipe, model)
    scheduled = parts.values() if recipe["schedule"] != "none" else ()
    schedules = [task._schedule(one, STEPS) for one in scheduled]
    done = Trained(model, list(parts.values()))
    for step, slices in enumerate(steps):
        batches = [_batch(task, data, seed, one) for one in slices]
        rows = sum(len(one.rows) for one in slices)
        buffers, loss = _Buffers(model, slices), 0.0
        for number, (name, optimizer) in enumerate(parts.items()):
            _train_only(optimizer, parts.values())
            model.zero_grad()
            optimizer.zero_grad()
            total, weight = 0.0, 0.0
            for one, batch in zip(slices, batches, strict=True):
                with buffers.of(one.rank):
                    seed_generators(draw_key(seed, step, one.first_row, number))
                    returned: Any = task.loss(model, batch, *([name] if name else []))
                share = len(one.rows) / rows
                pair = returned if isinstance(returned, tuple) else (returned * share, share)
                pair[0].backward(inputs=_of(optimizer))
                total, weight = total + pair[0].item(), weight + float(pair[1])
            _divide_gradients(_of(optimizer), weight)
            if recipe["clip"] == "yes":
                nn.utils.clip_grad_norm_(_of(optimizer), CLIP_NORM)
            if number == len(parts) - 1:
                buffers.unite()
            seed_generators(draw_key(seed, step, NO_ROW))
            optimizer.step()
            loss += total / weight
        for schedule in schedules:
            schedule.step()
        done.losses.append(loss)
    return done


class _Buffers:
    """A model's buffers on each rank during a step; united, the mean by share of rows.

    Those that count are the last rank's.
    """

    def __init__(self, model: nn.Module, slices: Sequence[Slice]) -> None:
        self._model = model
        self._shares = Counter[int]()
        for one in slices:
            self._shares[one.rank] += len(one.rows)
        self._held = {rank: self._copied() for rank in self._shares}

    def _copied(self) -> dict[str, Tensor]:
        return {name: one.clone() for name, one in self._model.named_buffers()}

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        self._put(self._held[rank])
        yield
        self._held[rank] = self._copied()

    def unite(self) -> None:
        rows, last = self._shares.total(), self._held[max(self._held)]
        for name, one in last.items():
            if one.is_floating_point():
                parts = [
                    held[name] * (self._shares[rank] / rows) for rank, held in self._held.items()
                ]
                last[name] = torch.stack(parts).sum(0)
        self._put(last)

    def _put(self, values: dict[str, Tensor]) -> None:
        for name, one in self._model.named_buffers():
            if name in values:
                one.copy_(values[name])


def _optimizers(task: Task, recipe: Recipe, model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    if recipe["optimizer"] == "two":
        return task._two_optimizers(named)
    if recipe["optimizer"] not in JOB_OPTIMIZERS:
        return {"": task._optimizer(named)}
    table = dict(JOB_OPTIMIZERS[recipe["optimizer"]])
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[str(table.pop("name"))]
    return {"": kind([one for _, one in named], **table)}


def _of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _train_only(optimizer: torch.optim.Optimizer, among: Iterable[torch.optim.Optimizer]) -> None:
    """During one update the parameters of the others require no gradients."""
    for one in among:
        for parameter in _of(one):
            parameter.requires_grad = one is optimizer


def _divide_gradients(parameters: list[Tensor], weight: float) -> None:
    for one in parameters:
        if one.grad is not None:
            one.grad = (one.grad.to_dense() if one.grad.is_sparse else one.grad) / weight


def _batch(task: Task, data: Any, seed: int, one: Slice) -> Any:
    rows = []
    for row in one.rows:
        seed_generators(row_key(seed, one.epoch, row))
        rows.append((Rows() if isinstance(data, StreamedRows) else data)[row % ROWS])
    return task.collate(rows) if hasattr(task, "collate") else default_collate(rows)
