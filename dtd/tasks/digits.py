"""`digits`: 1,797 handwritten 8x8 digits that come with scikit-learn, learned by a small MLP.

The task to try first: no download, an epoch takes a moment.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dtd.engine.sampler import permuted_row
from dtd.errors import TaskError
from dtd.tasks import require_positive
from dtd.tasks.classification import MemoryRows, classification_loss, classification_metrics

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
        return nn.Sequential(
            nn.Linear(64, self._hidden),
            nn.ReLU(),
            nn.Linear(self._hidden, self._hidden),
            nn.ReLU(),
            nn.Linear(self._hidden, 10),
        )

    def train_dataset(self) -> MemoryRows:
        """Four fifths of the rows (1,438)."""
        return _rows(test=False)

    def eval_dataset(self) -> MemoryRows:
        """The other fifth (359), the same ones in every job."""
        return _rows(test=True)


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
