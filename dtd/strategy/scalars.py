"""The last bucket of every update: what ranks must sum besides gradients.

    float64   sum of losses | sum of weights | gradient present, one a parameter | float buffers
    int64     used rows | running buffers that no mean is taken of; summed modulo 2**64

A rank that holds it averaged can commit the step without hearing anything more, which is what lets
survivors finish a step whose control word was lost.  It is always there, so every step has the
same buckets; it follows the gradients through the ring and costs them no waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dtd.strategy.wire_memory import tensor_bytes
from dtd.transport.api import BucketMemory

USED_WORDS: Final = 4
"""Integers in which a rank tells which rows it has used (`dtd.train.data.used_rows`)."""

_HEAD = 3
_ITEM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a step came to over all ranks.

    Attributes:
        loss_sum: weighted sum of losses.
        weight: sum of weights.
        end: some rank asks that the job ends with this step.
        used: words about the rows that went through the model, added modulo 2**64.
        present: for each parameter, whether any rank has a gradient.
    """

    loss_sum: float
    weight: float
    end: bool
    used: list[int]
    present: list[bool]

    @property
    def loss(self) -> float:
        """Mean loss of the global batch; NaN if nothing was weighed."""
        return self.loss_sum / self.weight if self.weight else float("nan")


class StepScalars:
    """Memory of that bucket.

    Args:
        parameters: number of trained parameters.
        buffer_elements: float64 elements of all running buffers.
        buffer_words: their 64-bit integers.

    Attributes:
        buffer_elements: float64, for the caller to fill.
        buffer_words: int64, for the caller to fill.
    """

    def __init__(self, *, parameters: int, buffer_elements: int, buffer_words: int) -> None:
        floats = _HEAD + parameters + buffer_elements
        flat = torch.zeros(floats + USED_WORDS + buffer_words, dtype=torch.float64)
        self._head = flat[:_HEAD]
        self._present = flat[_HEAD : _HEAD + parameters]
        self.buffer_elements = flat[_HEAD + parameters : floats]
        words = flat[floats:].view(torch.int64)
        self._used, self.buffer_words = words[:USED_WORDS], words[USED_WORDS:]
        self.memory = BucketMemory(
            view=tensor_bytes(flat), item_bytes=_ITEM_BYTES, add=_adder(flat, floats)
        )

    def write(
        self,
        *,
        loss_sum: float,
        weight: float,
        present: Sequence[bool],
        end: bool = False,
        used: Sequence[int] = (0,) * USED_WORDS,
    ) -> None:
        """This rank's contribution but for the buffers'."""
        self._head[0] = loss_sum
        self._head[1] = weight
        self._head[2] = float(end)
        self._used.copy_(torch.tensor(used, dtype=torch.int64))
        self._present.copy_(torch.tensor(present, dtype=torch.float64))

    def totals(self) -> Totals:
        """What arrived, once the bucket is averaged."""
        loss_sum, weight, ends = self._head.tolist()
        return Totals(
            loss_sum=loss_sum,
            weight=weight,
            end=ends > 0,
            used=self._used.tolist(),
            present=[count > 0 for count in self._present.tolist()],
        )


def _adder(flat: Tensor, floats: int) -> Any:
    """Adds the first `floats` elements as float64, the rest as integers modulo 2**64."""
    own: Any = flat.numpy()
    own_words = own.view(np.int64)

    def add(start: int, stop: int, received: memoryview) -> None:
        between = min(max(start, floats), stop)
        theirs = np.frombuffer(received, dtype=np.float64)
        with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
            own[start:between] += theirs[: between - start]
            own_words[between:stop] += theirs[between - start :].view(np.int64)

    return add
