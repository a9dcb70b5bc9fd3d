"""Whole jobs over the in-process ring, and plain torch to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dtd.engine.sampler import Position, advance
from dtd.job import JobSpec
from dtd.train.data.sampling import batch_rows
from dtd.train.state import saver as checkpoints
from tests.arena import Arena, Regression


@pytest.fixture
def arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts ranks over in-process rings; closes them all at the end.

    No checkpoint is left out because a busy disk is still writing the one before.
    """
    monkeypatch.setattr(checkpoints, "_PATIENCE_S", math.inf)
    arena = Arena(tmp_path)
    yield arena
    arena.close()


@pytest.fixture
def regression() -> type[Regression]:
    """A task to derive from."""
    return Regression


@pytest.fixture
def plain_torch() -> Callable[..., nn.Module]:
    """The same job in plain torch: one process, the whole batch, no dtd but the sampler."""

    def train(
        task: Any,
        spec: JobSpec,
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        clip_norm: float = 0.0,
        after: Callable[[torch.optim.Optimizer, nn.Module], Callable[[], None]] | None = None,
    ) -> nn.Module:
        torch.manual_seed(spec.job.seed)
        model = task.build_model()
        update = optimizer(model.parameters())
        updated = after(update, model) if after is not None else None
        data, position = task.train_dataset(), Position(0, 0)
        for _ in range(spec.job.steps or 0):
            rows = batch_rows(
                seed=spec.job.seed,
                position=position,
                global_batch_size=spec.job.global_batch_size,
                length=len(data),
            )
            loss = task.loss(model, data.fetch(rows, epoch=position.epoch, seed=spec.job.seed))
            if isinstance(loss, tuple):
                loss = loss[0] / loss[1]
            update.zero_grad()
            loss.backward()
            if clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            update.step()
            if updated is not None:
                updated()
            position = advance(position, len(rows), len(data))
        return model

    return train
