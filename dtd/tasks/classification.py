"""Shared code of classification tasks: loss, metrics, and rows held in memory.

A batch is (inputs, labels).
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  the name everybody knows it by
from torch import Tensor, nn

from dtd.errors import TaskError


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy over the rows."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def classification_metrics(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> dict[str, tuple[Tensor, int]]:
    """Sum and count of "loss" and "accuracy" over the rows."""
    inputs, labels = batch
    logits = model(inputs)
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    correct = (logits.argmax(dim=1) == labels).sum()
    return {"loss": (loss, len(labels)), "accuracy": (correct, len(labels))}


# --- a dataset whose rows all lie in memory as two arrays ----------------------------------------
#
# Images stay in their stored type (a quarter of the memory of float32) and become floats when they
# are fetched.  Nothing random happens here.


def unchanged(inputs: Tensor) -> Tensor:
    """Leave fetched inputs as they are stored."""
    return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Rows (inputs[i], labels[i]).

    Attributes:
        prepare: turns fetched inputs into the model's; deterministic, row by row.
    """

    inputs: Tensor
    labels: Tensor
    prepare: Callable[[Tensor], Tensor] = unchanged

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.prepare(self.inputs[row : row + 1])[0], self.labels[row]

    def fetch(self, row_ids: Sequence[int], *, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
        """All rows at once; the same in every epoch and under every seed."""
        del epoch, seed
        index = torch.tensor(row_ids, dtype=torch.int64)
        return self.prepare(self.inputs[index]), self.labels[index]


def open_archive(name: str, directory: str, *, train: bool, download: bool) -> Any:
    """The torchvision dataset called `name` ("MNIST" or "CIFAR10") under `directory`.

    Raises:
        TaskError: torchvision or the data is missing, damaged or cannot be downloaded.
    """
    try:
        import torchvision.datasets
    except ImportError as error:
        raise TaskError(
            f"reading {name} needs the package torchvision", remedy="type: pip install torchvision"
        ) from error
    kind = getattr(torchvision.datasets, name)
    root = Path(directory)
    if not download:
        return _open(kind, name, root, train)
    try:
        with _one_process_at_a_time(root):
            return kind(root, train=train, download=True)
    except (OSError, RuntimeError) as error:
        raise TaskError(
            f"{name} could not be downloaded to {root.absolute()}: {error}",
            remedy="check the network and the directory, or put the files there yourself",
        ) from error


def _open(kind: Any, name: str, root: Path, train: bool) -> Any:
    try:
        return kind(root, train=train, download=False)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise TaskError(
            f"{name} is missing or damaged under {root.absolute()}: {error}",
            remedy='set download = true, or data = "DIRECTORY", in the [task] table',
        ) from error


@contextlib.contextmanager
def _one_process_at_a_time(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".download.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes
        yield
