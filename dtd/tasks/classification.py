"""Shared code of classification tasks: loss, metrics, and rows held in memory.

A batch is (inputs, labels).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  the name everybody knows it by
from torch import Tensor, nn


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
        inputs: first dimension is the row.
        labels: one entry a row.
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
