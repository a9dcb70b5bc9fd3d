"""The norm of gradients of which each rank has only a part.

A rank computes the sum of squares of its own segments; the sums of all ranks are added in one small
exchange, the last one of a step.  So every rank knows the same norm, and whether every gradient is
finite: the square of what is not finite is not finite either.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dtd.strategy.wire_memory import bucket_memory

_WIDE = (torch.float32, torch.float64)


class SquaredNorm:
    """The sum of squares of all gradients.

    Attributes:
        memory: its exchange.
    """

    def __init__(self) -> None:
        self._sum = torch.zeros(1, dtype=torch.float64)
        self.memory = bucket_memory(self._sum)

    def clear(self) -> None:
        """Begin a sum."""
        self._sum.zero_()

    def add(self, gradients: Tensor) -> None:
        """Add this rank's gradients, which no other rank adds."""
        dtype = gradients.dtype if gradients.dtype in _WIDE else torch.float32
        norm = torch.linalg.vector_norm(gradients, dtype=dtype).double()
        self._sum += norm * norm

    def norm(self) -> float:
        """Return the norm of all ranks' gradients, once the exchange is complete."""
        return math.sqrt(float(self._sum))
