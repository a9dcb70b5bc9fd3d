"""A dataset whose rows all lie in memory as two arrays: inputs and labels.

Images stay in their stored type (a quarter of the memory of float32) and become floats when they
are fetched.  Nothing random happens here; augmentation is `dtd.tasks.augment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def unchanged(inputs: Tensor) -> Tensor:
    """Leave fetched inputs as they are stored."""
    return inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows:
    """Rows (inputs[i], labels[i]).

    Attributes:
        inputs: first dimension is the row.
        labels: one entry a row.
        prepare: turns fetched inputs into what the model takes; deterministic, row by row.
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
