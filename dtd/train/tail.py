"""The last bucket of every step: what ranks must sum besides gradients, in float64.

    [ sum of losses | sum of weights | gradient present, one a parameter | changes of buffers ]

A rank that holds it averaged can commit the step without hearing anything more, which is what lets
survivors finish a step whose control word was lost.  It is always there, so every step has the
same buckets; it follows the gradients through the ring and costs them no waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dtd.core.collective import BucketMemory
from dtd.train.reduce import bucket_memory

_HEAD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a step came to over all ranks.

    Attributes:
        loss_sum: weighted sum of losses.
        weight: sum of weights.
        present: for each parameter, whether any rank has a gradient.
        change: of the running buffers.
    """

    loss_sum: float
    weight: float
    present: list[bool]
    change: Tensor

    @property
    def loss(self) -> float:
        """Mean loss of the global batch; NaN if nothing was weighed."""
        return self.loss_sum / self.weight if self.weight else float("nan")


class Tail:
    """Memory of the tail bucket.

    Args:
        parameters: number of trained parameters.
        buffer_elements: elements of all running buffers.
    """

    def __init__(self, *, parameters: int, buffer_elements: int) -> None:
        self._flat = torch.zeros(_HEAD + parameters + buffer_elements, dtype=torch.float64)
        self._present = self._flat[_HEAD : _HEAD + parameters]
        self.change = self._flat[_HEAD + parameters :]
        self.memory: BucketMemory = bucket_memory(self._flat)

    def write(self, *, loss_sum: float, weight: float, present: list[bool]) -> None:
        """This rank's contribution but for `change`, which the caller fills."""
        self._flat[0] = loss_sum
        self._flat[1] = weight
        self._present.copy_(torch.tensor(present, dtype=torch.float64))

    def totals(self) -> Totals:
        """What arrived, once the bucket is averaged."""
        loss_sum, weight = self._flat[:_HEAD].tolist()
        return Totals(
            loss_sum=loss_sum,
            weight=weight,
            present=[count > 0 for count in self._present.tolist()],
            change=self.change,
        )
