"""The gated task with a model whose gradients are worth lending."""

from __future__ import annotations

from gated_task import FEATURES, Gated
from torch import nn

WIDTH = 256
PARAMETERS = FEATURES * WIDTH + WIDTH * WIDTH + WIDTH * 2


class Wide(Gated):
    """See `Gated`."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH, bias=False),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.ReLU(),
            nn.Linear(WIDTH, 2, bias=False),
        )
