"""Finds out which parameters a model uses in ways that no hook sees.

Parameters that are gathered while a model runs are waited for when their module's forward begins,
and when they are read as attributes of their module.  A model may also keep a parameter elsewhere,
in a list of its own for example, and compute with it before anybody has waited.  One pass over a
few rows, with every parameter in memory, shows whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtd.core.ring.buckets import Place
from dtd.strategy.sharded.storages import BucketOf


class DirectUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch while it is entered.

    Args:
        bucket_of: tells of which bucket a tensor is a view.
        is_here: whether the parameters of a bucket would be in memory now.

    Attributes:
        first: the first tensor that was used although its bucket would not be there.
    """

    def __init__(self, bucket_of: BucketOf, is_here: Callable[[int], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bucket_of = bucket_of
        self._is_here = is_here
        self.first: Tensor | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look at what an operation reads; one that only makes a view reads nothing."""
        del types
        if self.first is None and not getattr(func, "is_view", False):
            for one in tree_leaves((args, kwargs)):
                if isinstance(one, Tensor) and not self._may_use(one):
                    self.first = one
        return func(*args, **(kwargs or {}))

    def message(self, buckets: Sequence[Sequence[Place]], names: Sequence[str]) -> str:
        """Say which parameter it was.

        Args:
            buckets: the parameters of each bucket.
            names: of all parameters.
        """
        assert self.first is not None, "every use was one of its module"
        places = buckets[self._bucket_of(self.first) or 0]
        at = self.first.storage_offset()
        index = next(one.parameter for one in reversed(places) if one.start <= at)
        return (
            f"loss() or its backward uses {names[index]} outside of its module's forward, and not"
            " as an attribute of that module, so nothing shows when to gather it"
        )

    def _may_use(self, tensor: Tensor) -> bool:
        bucket = self._bucket_of(tensor)
        return bucket is None or self._is_here(bucket)
