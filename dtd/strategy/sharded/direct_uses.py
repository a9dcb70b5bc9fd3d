"""Finds out which parameters a model uses in ways that no hook sees.

Parameters that are gathered while a model runs are waited for when their module's forward begins,
and when they are read as attributes of their module.  A model may also keep a parameter elsewhere,
in a list of its own for example, and compute with it before anybody has waited.  Passes over a
few rows, with every parameter in memory, show whether it does.  They also show whether it
computes with the memory in which a parameter lay before (`dtd.strategy.sharded.former_memory`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtd.errors import TaskError
from dtd.exchange.ring.buckets import Place
from dtd.strategy.sharded.former_memory import FormerMemory
from dtd.strategy.sharded.storages import BucketOf


class DirectUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch while it is entered.

    Args:
        bucket_of: tells of which bucket a tensor is a view.
        is_here: whether the parameters of a bucket would be in memory now.
        former: the memory in which the parameters lay before.

    Attributes:
        first: the first tensor that was used although its bucket would not be there.
    """

    def __init__(
        self, bucket_of: BucketOf, is_here: Callable[[int], bool], former: FormerMemory
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bucket_of = bucket_of
        self._is_here = is_here
        self._former = former
        former.look()
        self._stale: int | None = None
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
        if not getattr(func, "is_view", False):
            for one in tree_leaves((args, kwargs)):
                if isinstance(one, Tensor) and one.layout is torch.strided:
                    self._look_at(one)
        return func(*args, **(kwargs or {}))

    def message(self, buckets: Sequence[Sequence[Place]], names: Sequence[str]) -> str:
        """Describe the use of the parameter.

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

    def _look_at(self, tensor: Tensor) -> None:
        if self._stale is None:
            self._stale = self._former.owner(tensor)
        if self.first is None:
            bucket = self._bucket_of(tensor)
            if bucket is not None and not self._is_here(bucket):
                self.first = tensor

    def check_former(self, names: Sequence[str]) -> None:
        """Check that the pass has used no memory that its parameter has left.

        Args:
            names: of all parameters.

        Raises:
            TaskError: it has.
        """
        if self._stale is not None:
            raise TaskError(
                f"loss() computes with a view of {names[self._stale]} that was kept outside of the"
                ' model\'s parameters, and strategy.name = "sharded" gives each parameter memory of'
                " its own, so the view would not follow it",
                remedy=f"use {names[self._stale]} itself in forward(), keep .clone() of it if the"
                ' values are not to change, or use strategy.name = "replicated"',
            )


# torch wraps this method so that its compiler steps around it.  The wrapper imports that compiler
# and sympy in every worker: 1.4 s of processor time, and 150,000 objects at which each full
# collection of garbage looks, while neither the event loop nor the training thread runs.
DirectUses.__torch_dispatch__ = inspect.unwrap(  # type: ignore[method-assign]
    DirectUses.__torch_dispatch__
)
