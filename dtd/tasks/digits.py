"""Handwritten digits, learned by an MLP: `digits` and `mnist`.

`digits` has 1,797 of 8x8 pixels that come with scikit-learn.  It is the task to try first: no
download, an epoch takes a moment.  `mnist` has 70,000 of 28x28.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dtd.engine.sampler import permuted_row
from dtd.errors import TaskError
from dtd.tasks import require_positive
from dtd.tasks.classification import (
    MemoryRows,
    classification_loss,
    classification_metrics,
    open_archive,
)

_TEST_ROWS = 359
"""A fifth; which ones is the same in every job."""


class Digits:
    """Handwritten digits and an MLP with two hidden layers.

    Args:
        hidden: width of the hidden layers.
    """

    loss = staticmethod(classification_loss)
    metrics = staticmethod(classification_metrics)

    def __init__(self, *, hidden: int = 64) -> None:
        require_positive(hidden=hidden)
        self._hidden = hidden

    def build_model(self) -> nn.Module:
        """64 pixels -> hidden -> hidden -> 10 classes."""
        return nn.Sequential(*_layers(64, self._hidden))

    def train_dataset(self) -> MemoryRows:
        """Four fifths of the rows (1,438)."""
        return _rows(test=False)

    def eval_dataset(self) -> MemoryRows:
        """The other fifth (359), the same ones in every job."""
        return _rows(test=True)


def _layers(pixels: int, hidden: int) -> list[nn.Module]:
    wide = [nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
    return [*wide, nn.Linear(hidden, 10)]


def _rows(*, test: bool) -> MemoryRows:
    with gzip.open(_file()) as lines:
        table = torch.from_numpy(np.loadtxt(lines, delimiter=",", dtype=np.float32))
    pixels, labels = table[:, :-1], table[:, -1].to(torch.int64)
    mixed = [permuted_row(0, 0, place, len(labels)) for place in range(len(labels))]
    keep = mixed[:_TEST_ROWS] if test else mixed[_TEST_ROWS:]
    # Pixels are 0..16 with mean 5; a wide range lets plain SGD at 0.1 learn within a few epochs.
    return MemoryRows(inputs=(pixels[keep] - 5.0) / 3.0, labels=labels[keep])


def _file() -> Path:
    """A row an image, its 64 pixels and its digit; importing scikit-learn takes a second and more.

    Raises:
        TaskError: there is none.
    """
    package = importlib.util.find_spec("sklearn")
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return path
    raise TaskError(
        "task digits needs the package scikit-learn, which holds its data",
        remedy="type: pip install scikit-learn",
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
        return nn.Sequential(nn.Flatten(), *_layers(28 * 28, self._hidden))

    def train_dataset(self) -> MemoryRows:
        return self._rows(train=True)

    def eval_dataset(self) -> MemoryRows:
        return self._rows(train=False)

    def _rows(self, *, train: bool) -> MemoryRows:
        archive = open_archive("MNIST", self._data, train=train, download=self._download)
        labels = archive.targets.to(torch.int64)
        return MemoryRows(inputs=archive.data, labels=labels, prepare=_normalise)


def _normalise(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255.0 - _MEAN) / _SPREAD
