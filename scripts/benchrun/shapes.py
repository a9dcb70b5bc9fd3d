"""Models whose parameters are divided in unusual ways, for measuring their memory."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.tasks.synthetic import MadeUpRows

_ROWS: Final = 2048
_WIDTH: Final = 256
_EMBEDDED: Final = 0.8
"""The part of the parameters that is one embedding."""


class Shaped:
    """Random rows and a model of one of these shapes.

    Args:
        shape: "even": 96 equal layers; "few": four; "embedding": layers after an embedding that has
            four fifths of all parameters; "tied": whose last layer has the embedding's weight.
        parameters: of the model, nearly.
    """

    def __init__(self, *, shape: str, parameters: int) -> None:
        self._shape, self._parameters = shape, parameters

    def build_model(self) -> nn.Module:
        """The model."""
        if self._shape in ("even", "few"):
            layers = 96 if self._shape == "even" else 4
            return _stack(layers, max(1, math.isqrt(self._parameters // layers)))
        words = int(_EMBEDDED * self._parameters) // _WIDTH
        layers = int((1 - _EMBEDDED) * self._parameters) // _WIDTH**2
        return _Embedded(words, layers, tied=self._shape == "tied")

    def train_dataset(self) -> MadeUpRows:
        """The same rows in every job."""
        generator = torch.Generator().manual_seed(0)
        return MadeUpRows(features=torch.randn(_ROWS, 32, generator=generator), width=32)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return a loss of no meaning, to be lowered."""
        inputs, _ = batch
        loss: Tensor = model(inputs).square().mean()
        return loss


def _stack(layers: int, width: int) -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(_Widened(width), *blocks)


class _Widened(nn.Module):
    """Repeats its input to a width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Rows of numbers -> rows of so many."""
        return x.repeat(1, -(-self.width // x.shape[1]))[:, : self.width]


class _Embedded(nn.Module):
    def __init__(self, words: int, layers: int, *, tied: bool) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, _WIDTH)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()) for _ in range(layers))
        )
        self.last = nn.Linear(_WIDTH, words if tied else 1, bias=False)
        if tied:
            self.last.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Rows of numbers, which stand for words -> scores."""
        numbers = (x.abs() * 1000).long() % self.words
        scores: Tensor = self.last(self.layers(self.embedding(numbers).mean(1)))
        return scores
