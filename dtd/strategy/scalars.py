"""The last bucket of every update: the values, other than gradients, that are summed over ranks.

    float64   loss sum | weight sum | end | gradient present, for each parameter | float buffers
    int64     used rows | running buffers that are not averaged; summed modulo 2**64

A rank that holds the result can commit the step without further communication, so survivors can
finish a step whose control word was lost.  The bucket always exists, so every step has the same
buckets.  It follows the gradients through the ring and does not delay them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dtd.exchange.api import BucketMemory
from dtd.exchange.schedule.chunks import BucketShape
from dtd.strategy.wire_memory import tensor_bytes

USED_WORDS: Final = 4
"""Number of integers that describe the rows a rank has used (`dtd.train.data.rows`)."""

_HEAD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A step's sums over all ranks.

    Attributes:
        end: whether any rank asks to end the job with this step.
        used: integers that describe the rows the model processed, added modulo 2**64.
        present: for each parameter, whether any rank has a gradient.
    """

    loss_sum: float
    weight: float
    end: bool
    used: list[int]
    present: list[bool]

    @property
    def loss(self) -> float:
        """Mean loss of the global batch; NaN if the weights sum to 0."""
        return self.loss_sum / self.weight if self.weight else float("nan")


class StepScalars:
    """The memory of that bucket.

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
            view=tensor_bytes(flat),
            shape=BucketShape(elements=flat.numel(), item_bytes=flat.element_size()),
            add=_adder(flat, floats),
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
        """Write this rank's contribution, except for the running buffers."""
        self._head[0] = loss_sum
        self._head[1] = weight
        self._head[2] = float(end)
        self._used.copy_(torch.tensor(used, dtype=torch.int64))
        self._present.copy_(torch.tensor(present, dtype=torch.float64))

    def totals(self) -> Totals:
        """Return the sums, once the bucket holds its result."""
        loss_sum, weight, ends = self._head.tolist()
        return Totals(
            loss_sum=loss_sum,
            weight=weight,
            end=ends > 0,
            used=self._used.tolist(),
            present=[count > 0 for count in self._present.tolist()],
        )


def _adder(flat: Tensor, floats: int) -> Any:
    """Return a function that adds `floats` elements as float64, the rest as ints modulo 2**64."""
    own: Any = flat.numpy()
    own_words = own.view(np.int64)

    def add(start: int, stop: int, received: memoryview) -> None:
        between = min(max(start, floats), stop)
        theirs = np.frombuffer(received, dtype=np.float64)
        with np.errstate(all="ignore"):  # sums that are not finite are found after the vote
            own[start:between] += theirs[: between - start]
            own_words[between:stop] += theirs[between - start :].view(np.int64)

    return add
