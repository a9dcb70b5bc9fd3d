"""The memory in which parameters lay before they moved to their buckets.

It goes with its last tensor.  If a model has kept one, a view of a weight in an attribute for
example, then that does not follow the parameter any more, and nothing but its use shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dtd.strategy.sharded.shared_memory import Region, overlap
from dtd.strategy.sharded.storages import identity


class FormerMemory:
    """The places of parameters that are about to be moved.

    Args:
        parameters: where they lie now.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        watched: Any = StorageWeakRef  # torch has not annotated it
        self._regions = [
            (watched(one.untyped_storage()), index, Region.of(one))
            for index, one in enumerate(parameters)
        ]
        self._left: dict[int, list[tuple[int, Region]]] = {}

    def look(self) -> None:
        """Find the former memory that still exists, for `owner`."""
        self._left = {}
        for storage, index, region in self._regions:
            if not storage.expired():
                self._left.setdefault(region.storage, []).append((index, region))

    def owner(self, tensor: Tensor) -> int | None:
        """Return the index of a parameter that lay where a tensor lies; None if there is none."""
        if not self._left:
            return None
        there = self._left.get(identity(tensor), ())
        return next((i for i, region in there if overlap(region, Region.of(tensor))), None)
