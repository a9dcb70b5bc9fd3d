"""Callbacks, the task's own state and early stopping: a line through noisy points.

dtdctl submit docs/examples/callbacks.toml
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dtd.train.record import Moment


class NoisyLine:
    def __init__(self, points: int = 400) -> None:
        self.points = points
        self.smooth_loss: float | None = None  # the task's state: equal on all workers, saved

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> TensorDataset:
        return self._draw(seed=0, points=self.points)

    def eval_dataset(self) -> TensorDataset:
        return self._draw(seed=1, points=self.points // 4)

    def _draw(self, *, seed: int, points: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(seed)
        x = torch.rand(points, 1, generator=draw)
        return TensorDataset(x, 2 * x + 1 + 0.1 * torch.randn(x.shape, generator=draw))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    # --- callbacks: figures are equal on all workers; printed lines are in `dtdctl logs` ----------

    def on_start(self, at: Moment) -> None:
        print(f"rank {at.rank} of {at.world_size} starts at step {at.step}")

    def on_step(self, at: Moment) -> None:
        before, loss = self.smooth_loss, at.metrics["loss"]
        self.smooth_loss = loss if before is None else 0.9 * before + 0.1 * loss

    def on_evaluation(self, at: Moment) -> str | None:
        if at.rank == 0:
            print(
                f"epoch {at.epoch}: loss {at.metrics['loss']:.4f}, in training {self.smooth_loss}"
            )
        return "as good as the noise allows" if at.metrics["loss"] < 0.0101 else None

    def on_checkpoint(self, at: Moment) -> None:
        print(f"step {at.step} is saved in {at.directory}")

    def on_end(self, at: Moment) -> None:
        if at.rank == 0:
            print(f"over after {at.step} steps: {dict(at.metrics)}")

    # --- what dtd saves, compares and hands to joining workers -----------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"smooth_loss": self.smooth_loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.smooth_loss = state["smooth_loss"]
