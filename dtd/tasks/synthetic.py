"""`synthetic`: a model of any size over made-up rows, for measuring.

`compute_ms` adds time to a step in which the processor is free, as it is while an accelerator
computes: a third of it in forward and two thirds in backward, spread over the layers.  So one can
see how much of the synchronisation hides behind backward, on any machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.tasks import require_positive

_FEATURES = 32
"""Numbers stored for a row; the model's input repeats them to its own width."""


class Synthetic:
    """Random rows and a stack of equally wide linear layers.

    Args:
        parameters: size of the model; the nearest that equal layers can make.
        rows: length of the dataset.
        layers: number of linear layers.
        compute_ms: time that one forward and backward pass takes on top.
    """

    def __init__(
        self,
        *,
        parameters: int = 1_000_000,
        rows: int = 4096,
        layers: int = 4,
        compute_ms: float = 0.0,
    ) -> None:
        require_positive(parameters=parameters, rows=rows, layers=layers)
        if not isinstance(compute_ms, int | float) or not 0 <= compute_ms < math.inf:
            raise TaskError(
                f"[task] compute_ms must be a number of at least 0, not {compute_ms!r}",
                remedy="change compute_ms in the job file",
            )
        self._layers = layers
        self._rows = rows
        self._width = _width_for(parameters, layers)
        self._pause_s = compute_ms / 1000.0 / layers

    def build_model(self) -> nn.Module:
        """`layers` times (linear, tanh, the extra time)."""
        blocks = [
            nn.Sequential(nn.Linear(self._width, self._width), nn.Tanh(), Pause(self._pause_s))
            for _ in range(self._layers)
        ]
        return nn.Sequential(*blocks)

    def train_dataset(self) -> MadeUpRows:
        """The same rows in every job."""
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(self._rows, _FEATURES, generator=generator)
        return MadeUpRows(features=features, width=self._width)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean squared error of the mean output."""
        inputs, targets = batch
        return F.mse_loss(model(inputs).mean(dim=1), targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpRows:
    """Inputs `width` numbers wide, and one target that can be learned from them."""

    features: Tensor
    width: int

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.fetch([row], epoch=0, seed=0)
        return inputs[0], targets[0]

    def fetch(self, row_ids: Sequence[int], *, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
        """All rows at once."""
        del epoch, seed
        features = self.features[torch.tensor(row_ids, dtype=torch.int64)]
        repeats = -(-self.width // _FEATURES)
        return features.repeat(1, repeats)[:, : self.width], torch.tanh(features[:, 0])


class Pause(nn.Module):
    """Takes time and changes nothing: `pause_s` in all, a third of it in forward."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def forward(self, x: Tensor) -> Tensor:
        """Any tensor -> the same one."""
        if self.pause_s == 0.0:
            return x
        out: Tensor = _Pause.apply(x, self.pause_s)
        return out


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pause_s: float) -> Tensor:
        ctx.pause_s = pause_s
        time.sleep(pause_s / 3.0)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.pause_s * 2.0 / 3.0)
        return gradients[0], None


def _width_for(parameters: int, layers: int) -> int:
    """Width at which `layers` layers of width * width weights and width biases come nearest."""
    exact = (math.sqrt(1.0 + 4.0 * parameters / layers) - 1.0) / 2.0
    return max(1, round(exact))
