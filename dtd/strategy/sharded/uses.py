"""Observes a model's uses of parameters that are gathered while it runs.

`Gates` hook modules and parameters: a hook sees that a module's forward begins or ends; a gate,
that one of its parameters is read as an attribute, as by a module that uses those of its submodules
directly.  `UnitUses` combines them for stage 3: a unit is used when its forward begins, when a
module's parameter is read as an attribute, and when autograd unpacks a tensor that shares a
parameter's memory.  So recomputed blocks, tied weights and parameters that another module uses need
no special care.

A model may also keep a parameter elsewhere, in a list of its own for example, and compute with it
before anything has waited.  `DirectUses` finds that in passes over a few rows, with every parameter
in memory.  It also finds uses of the memory in which a parameter lay before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dtd.errors import TaskError
from dtd.exchange.schedule.buckets import BucketPlan, Place
from dtd.strategy.sharded.schedule import STAGE_2, Recorder

_COMPILED = ("OptimizedModule", "ScriptModule", "RecursiveScriptModule")


def is_compiled(module: nn.Module) -> bool:
    """Whether a module's code is compiled, and reads parameters by ways of its own."""
    return type(module).__name__ in _COMPILED


class Gates:
    """The hooks and gates of one model, removed together."""

    def __init__(self) -> None:
        self._hooks: list[RemovableHandle] = []
        self._gated: list[nn.Module] = []

    def hold(self, hook: RemovableHandle) -> None:
        """Remove this hook as well when they are closed."""
        self._hooks.append(hook)

    def gate(self, module: nn.Module, before_use: Callable[[Any], None]) -> None:
        """Have this called with a parameter of the module's own before it is returned."""
        own = module._parameters  # noqa: SLF001 - as DeepSpeed's ZeRO 3: torch has no other way
        module._parameters = Gated(own, before_use)  # noqa: SLF001
        self._gated.append(module)

    def close(self) -> None:
        """Give the model back as it was."""
        for hook in self._hooks:
            hook.remove()
        for module in self._gated:
            module._parameters = dict(module._parameters.items())  # noqa: SLF001
        self._hooks, self._gated = [], []


class Gated(dict[str, Any]):
    """A module's parameters by name; each read first calls `before_use` with the parameter."""

    def __init__(self, given: dict[str, Any], before_use: Callable[[Any], None]) -> None:
        super().__init__(given)
        self._before_use = before_use

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        self._before_use(parameter)
        return parameter

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, default) if name not in self else self[name]

    def values(self) -> Any:
        self._before_all()
        return super().values()

    def items(self) -> Any:
        self._before_all()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of the model have ordinary parameters."""
        return dict, (dict(self.items()),)

    def _before_all(self) -> None:
        for parameter in super().values():
            self._before_use(parameter)


class DirectUses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch while it is entered.

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
        former.scan()
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
                    self._inspect(one)
        return func(*args, **(kwargs or {}))

    def message(self, buckets: Sequence[Sequence[Place]], names: Sequence[str]) -> str:
        """Describe the use of the parameter."""
        assert self.first is not None, "every use was one of its module"
        places = buckets[self._bucket_of(self.first) or 0]
        at = self.first.storage_offset()
        index = next(one.parameter for one in reversed(places) if one.start <= at)
        return (
            f"loss() or its backward uses {names[index]} outside of its module's forward, and not"
            " as an attribute of that module, so nothing shows when to gather it"
        )

    def _inspect(self, tensor: Tensor) -> None:
        if self._stale is None:
            self._stale = self._former.owner(tensor)
        if self.first is None:
            bucket = self._bucket_of(tensor)
            if bucket is not None and not self._is_here(bucket):
                self.first = tensor

    def check_former(self, names: Sequence[str]) -> None:
        """Check that the pass has used no memory that its parameter has left."""
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
    """The uses of one model's parameters by its units, each of which is a module."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        names: Sequence[str],
        plan: BucketPlan,
        modules: Sequence[nn.Module],
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
        self._modules = list(modules)
        self._listener: Listener | None = None
        self._gates = Gates()
        self._install(model)

    @contextmanager
    def notify(self, listener: Listener) -> Iterator[None]:
        """Tell this listener of every use within the context, and of none outside."""
        self._listener = listener
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self._listener = None

    def watch(self, run: Callable[[], None], former: FormerMemory) -> Recorder:
        """Record a pass.

        Raises:
            TaskError: the model uses a parameter in a way that cannot be seen.
        """
        recorder = Recorder(self._unit_of)
        direct = DirectUses(self._bucket_of, lambda b: self._unit_of[b] in recorder.here, former)
        try:
            with self.notify(recorder), direct:
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
            parameter.grad = None  # it is not sent


# --- where tensors lie: of which bucket one is a view, and whether two share memory ---------------


BucketOf = Callable[[Tensor], int | None]
"""Returns the bucket of which a tensor is a view; None if it is something else."""


def bucket_finder(flats: Sequence[Tensor]) -> BucketOf:
    """Return a function for these buckets; it works also while they have no memory."""
    by_storage = {identity(flat): number for number, flat in enumerate(flats)}

    def bucket_of(tensor: Tensor) -> int | None:
        return by_storage.get(identity(tensor)) if tensor.layout is torch.strided else None

    return bucket_of


def identity(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from all others, whether it has memory or not."""
    cdata: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - torch has no other name
    return cdata


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The memory of a strided tensor, as long as its storage exists."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Region:
        """Return where a tensor lies now."""
        return cls(
            storage=identity(tensor),
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()),
            offset=int(tensor.storage_offset()),
        )

    @property
    def start(self) -> int:
        return self.offset * self.dtype.itemsize

    @property
    def stop(self) -> int:
        """The byte after the last one; not all between must belong to the tensor."""
        if 0 in self.shape:
            return self.start
        steps = zip(self.strides, self.shape, strict=True)
        last = sum(stride * (size - 1) for stride, size in steps)
        return self.start + (last + 1) * self.dtype.itemsize


def overlap(one: Region, other: Region) -> bool:
    """Whether an element is a part of both; so are bytes, if the element types differ."""
    if one.storage != other.storage or one.stop <= other.start or other.stop <= one.start:
        return False
    if one.dtype != other.dtype:
        return True
    first = min(one.offset, other.offset)
    stop = max(one.stop, other.stop) // one.dtype.itemsize
    marks = torch.zeros(stop - first, dtype=torch.bool)

    def marked(region: Region) -> Tensor:
        return marks.as_strided(region.shape, region.strides, region.offset - first)

    marked(one).fill_(value=True)
    return bool(marked(other).any())


class FormerMemory:
    """The memory in which parameters lie now, before they move to their buckets.

    It is freed with its last tensor.  If a model keeps one, such as a view of a weight in an
    attribute, that does not follow the parameter any more, and only its use shows it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        watched: Any = StorageWeakRef  # torch has not annotated it
        self._regions = [
            (watched(one.untyped_storage()), index, Region.of(one))
            for index, one in enumerate(parameters)
        ]
        self._left: dict[int, list[tuple[int, Region]]] = {}

    def scan(self) -> None:
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
