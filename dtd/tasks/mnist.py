"""`mnist`: 70,000 handwritten 28x28 digits, learned by an MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtd.tasks import require_positive
from dtd.tasks.classification import (
    MemoryRows,
    classification_loss,
    classification_metrics,
    open_archive,
)

_MEAN, _SPREAD = 0.1307, 0.3081
"""Mean and standard deviation of all training pixels, on a scale of 0..1."""


class Mnist:
    """MNIST and an MLP with two hidden layers.

    Args:
        data: directory that holds (or will hold) torchvision's `MNIST/raw`.
        hidden: width of the hidden layers.
        download: fetch the files when they are missing.
    """

    loss = staticmethod(classification_loss)
    metrics = staticmethod(classification_metrics)

    def __init__(self, *, data: str = "data", hidden: int = 256, download: bool = False) -> None:
        require_positive(hidden=hidden)
        self._data = data
        self._hidden = hidden
        self._download = download

    def build_model(self) -> nn.Module:
        """784 pixels -> hidden -> hidden -> 10 classes."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(28 * 28, self._hidden),
            nn.ReLU(),
            nn.Linear(self._hidden, self._hidden),
            nn.ReLU(),
            nn.Linear(self._hidden, 10),
        )

    def train_dataset(self) -> MemoryRows:
        """The 60,000 training rows."""
        return self._rows(train=True)

    def eval_dataset(self) -> MemoryRows:
        """The 10,000 test rows."""
        return self._rows(train=False)

    def _rows(self, *, train: bool) -> MemoryRows:
        archive = open_archive("MNIST", self._data, train=train, download=self._download)
        labels = archive.targets.to(torch.int64)
        return MemoryRows(inputs=archive.data, labels=labels, prepare=_normalise)


def _normalise(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255.0 - _MEAN) / _SPREAD
