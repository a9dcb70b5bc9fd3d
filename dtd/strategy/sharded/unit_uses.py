"""Observes a model's uses of each unit's parameters, and the arrival of their gradients.

A unit is used when its forward begins, when a module's parameter is read as an attribute, and when
autograd unpacks a tensor that shares a parameter's memory.  So recomputed blocks, tied weights and
parameters that another module uses need no special care.  What none of this shows
(`dtd.strategy.sharded.direct_uses`) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from dtd.errors import TaskError
from dtd.exchange.ring.buckets import BucketPlan
from dtd.strategy.sharded.direct_uses import DirectUses
from dtd.strategy.sharded.former_memory import FormerMemory
from dtd.strategy.sharded.gates import Gates
from dtd.strategy.sharded.pass_plan import STAGE_2
from dtd.strategy.sharded.schedule import Recorder
from dtd.strategy.sharded.storages import BucketOf
from dtd.strategy.sharded.units import Unit


class Listener(Protocol):
    """The receiver of a unit's uses."""

    def need(self, unit: int) -> None:
        """A unit's parameters are about to be used."""

    def end(self, unit: int) -> None:
        """Forward of a unit has ended, and has not returned parameters of its own."""

    def gradient(self, bucket: int, parameter: int) -> None:
        """Backward has computed a gradient."""


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor of a unit that autograd has saved."""

    unit: int
    tensor: Tensor


class UnitUses:
    """The uses of one model's parameters.

    Args:
        parameters: the trained parameters, in the plan's order.
        names: their names, for messages.
        plan: their places in buckets.
        units: the units of the model.
        unit_of: the unit of each bucket.
        model: the model.
        bucket_of: tells of which bucket a tensor is a view.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        plan: BucketPlan,
        units: Sequence[Unit],
        unit_of: Sequence[int],
        model: nn.Module,
        *,
        bucket_of: BucketOf,
    ) -> None:
        self._parameters, self._names = list(parameters), list(names)
        self._places = [bucket.places for bucket in plan.buckets]
        self._unit_of, self._bucket_of = list(unit_of), bucket_of
        self._unit_by_id = {
            id(parameters[place.parameter]): unit
            for unit, places in zip(unit_of, self._places, strict=True)
            for place in places
        }
        self._modules = [unit.module for unit in units]
        self._listener: Listener | None = None
        self._gates = Gates()
        self._install(model)

    @contextmanager
    def told_to(self, listener: Listener) -> Iterator[None]:
        """Tell this listener of every use within the context; at other times nobody is told."""
        self._listener = listener
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._listener = None

    def watch(self, run: Callable[[], None], former: FormerMemory) -> Recorder:
        """Record a pass.

        Args:
            run: forward and backward over some rows; all parameters are in memory.
            former: the memory in which they lay before.

        Raises:
            TaskError: the model uses a parameter in a way that cannot be seen.
        """
        recorder = Recorder(self._unit_of)
        direct = DirectUses(self._bucket_of, lambda b: self._unit_of[b] in recorder.here, former)
        try:
            with self.told_to(recorder), direct:
                run()
        finally:
            for parameter in self._parameters:
                parameter.grad = None
        direct.check_former(self._names)
        if direct.first is not None:
            raise TaskError(direct.message(self._places, self._names), remedy=STAGE_2)
        return recorder

    def close(self) -> None:
        """Leave the model as it was."""
        self._gates.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> UnitUses:
        """Return the same object: the hooks of a copied model have nothing of their own here."""
        del memo
        return self

    def _install(self, model: nn.Module) -> None:
        for unit, module in enumerate(self._modules):
            before, after = partial(self._on_forward, unit), partial(self._on_forward_end, unit)
            self._gates.hold(module.register_forward_pre_hook(before))
            self._gates.hold(module.register_forward_hook(after))
        for bucket, places in enumerate(self._places):
            for place in places:
                hook: Any = self._parameters[place.parameter].register_post_accumulate_grad_hook
                self._gates.hold(hook(partial(self._on_gradient, bucket, place.parameter)))
        for module in model.modules():
            if any(id(one) in self._unit_by_id for one in module.parameters(recurse=False)):
                self._gates.gate(module, self._on_use)

    def _on_forward(self, unit: int, module: nn.Module, given: Any) -> None:
        del given
        if module is self._modules[unit]:  # no copy of it
            self._need(unit)

    def _on_forward_end(self, unit: int, module: nn.Module, given: Any, result: Any) -> None:
        del given
        if module is not self._modules[unit] or self._is_part_of(result, unit):
            return
        if torch._C._current_graph_task_id() != -1:  # noqa: SLF001 - recomputed in backward
            return
        if self._listener is not None:
            self._listener.end(unit)

    def _is_part_of(self, result: Any, unit: int) -> bool:
        """Whether a module has returned parameters of its own, which are then used elsewhere."""
        tensors = (one for one in tree_leaves(result) if isinstance(one, Tensor))
        return any(self._unit_behind(one) == unit for one in tensors)

    def _unit_behind(self, tensor: Tensor) -> int | None:
        """Return the unit whose parameters a tensor is a view of; None if there is none."""
        bucket = self._bucket_of(tensor)
        return None if bucket is None else self._unit_of[bucket]

    def _on_use(self, parameter: Any) -> None:
        unit = self._unit_by_id.get(id(parameter))
        if unit is not None:
            self._need(unit)

    def _pack(self, tensor: Tensor) -> Any:
        unit = self._unit_behind(tensor)
        return tensor if unit is None else _Saved(unit, tensor)

    def _unpack(self, saved: Any) -> Tensor:
        if isinstance(saved, _Saved):
            self._need(saved.unit)
            return saved.tensor
        tensor: Tensor = saved
        return tensor

    def _need(self, unit: int) -> None:
        if self._listener is not None:
            self._listener.need(unit)

    def _on_gradient(self, bucket: int, index: int, parameter: Tensor) -> None:
        if self._listener is None:
            return  # a task's metrics may run backward, too
        self._listener.gradient(bucket, index)
        if isinstance(self._listener, Recorder):
            parameter.grad = None  # nobody sends it
