"""The memory that a job uses in one worker, measured in one early step of each generation.

What lies in tensors is counted, and what forward and backward allocate at their peak.  On a CPU
that is the peak of what autograd keeps for backward, counted by hooks on the tensors that it saves:
torch's profiler has to start in the thread that initialised it, and processes with a process group
crashed or hung when a generation ended while it ran.  The figures go to the coordinator with
heartbeats (`dtd.doctor.memory` names the parts).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from dtd.doctor.memory import StateSize, state_parts
from dtd.job import JobSpec
from dtd.strategy.api import Strategy
from dtd.strategy.nested import leaves
from dtd.train.memory.calculated import GRADIENTS_IN_POOL, division_of, snapshot_bytes
from dtd.train.record import MemoryRecord, Reporter
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import OPTIMIZER, named_tensors

MEASURED_STEP: Final = 2
"""Step of a generation whose memory is measured."""

_COMPILED: Final = "OptimizedModule"
_STATUS: Final = Path("/proc/self/status")
_NOTHING: Final[AbstractContextManager[None]] = contextlib.nullcontext()


class SavedBytes:
    """Bytes that autograd holds for backward; a storage that several tensors share counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._holders: Counter[int] = Counter()
        self._own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def save(self, tensor: Tensor) -> _Saved:
        return _Saved(self, tensor)

    def hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        self._holders[storage.data_ptr()] += 1
        if self._holders[storage.data_ptr()] == 1:
            self._live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def release(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        self._holders[storage.data_ptr()] -= 1
        if self._holders[storage.data_ptr()] == 0:
            self._live_bytes -= storage.nbytes()


class _Saved:
    """Lives as long as autograd needs the tensor."""

    __slots__ = ("meter", "tensor")

    def __init__(self, meter: SavedBytes, tensor: Tensor) -> None:
        self.meter, self.tensor = meter, tensor
        meter.hold(tensor)

    def __del__(self) -> None:
        self.meter.release(self.tensor)


@contextlib.contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[SavedBytes]:
    """Measure the memory that the forwards inside keep for their backwards."""
    meter = SavedBytes(model)
    with torch.autograd.graph.saved_tensors_hooks(meter.save, lambda saved: saved.tensor):
        yield meter


class MemoryMeter:
    """Measures one step of each generation.

    Attributes:
        parts: measured in this generation; empty before it.
        size: of the whole state.
    """

    def __init__(
        self,
        size: StateSize,
        *,
        replica: Replica,
        strategy: Strategy,
        spec: JobSpec,
        device: torch.device,
        reporter: Reporter,
    ) -> None:
        self.parts: dict[str, int] = {}
        self.size = size
        self._replica, self._strategy, self._reporter = replica, strategy, reporter
        self._spec, self._device = spec, device
        self._snapshot_bytes = 0
        self._steps = 0
        self._world_size = 1

    def regroup(self, world_size: int) -> None:
        self.parts, self._steps, self._world_size = {}, 0, world_size

    def step(self) -> AbstractContextManager[None]:
        """Return the context of a step's forward and backward."""
        self._steps += 1
        return self._measured() if self._steps == MEASURED_STEP else _NOTHING

    @contextlib.contextmanager
    def _measured(self) -> Iterator[None]:
        with activation_peak(self._replica.model, self._device) as peak:
            yield
        self.parts = self._held() | {"snapshots": self._snapshot_bytes}
        if peak:
            self.parts["activations"] = max(peak)
        self._report()

    def copied(self, snapshot_bytes: int) -> None:
        """A checkpoint has been taken: its copy of the state is there while it is written."""
        self._snapshot_bytes = snapshot_bytes
        if self.parts and snapshot_bytes != self.parts["snapshots"]:
            self.parts["snapshots"] = snapshot_bytes
            self._report()

    def _report(self) -> None:
        self.parts["process"] = process_bytes(self._device)
        # Measured at the end of backward, when all gradients are in their buckets.
        in_buckets = replace(self.size, gradient_bytes=0)
        predicted = state_parts(in_buckets, division_of(self._spec), self._world_size)
        predicted["snapshots"] = snapshot_bytes(self._replica)
        self._reporter.memory_measured(MemoryRecord(measured=dict(self.parts), predicted=predicted))

    def _held(self) -> dict[str, int]:
        """Return the bytes of what lies in tensors at the end of backward, each storage once."""
        replica, in_buckets = self._replica, self._strategy.size_bytes
        model = _storages([*replica.model.parameters(), *replica.model.buffers()])
        optimizer = _storages(_optimizer_tensors(replica))
        for one in replica.shards.tensors() if replica.shards is not None else []:
            of_one = _storages(piece.values for piece in one.pieces)
            (optimizer if one.name.startswith(OPTIMIZER) else model).update(of_one)
        gradients = sum(p.grad.nbytes for _, p in replica.trained if p.grad is not None)
        if division_of(self._spec).stage >= GRADIENTS_IN_POOL:
            gradients = max(gradients, in_buckets)
        return {
            "parameters": sum(model.values()),
            "gradients": gradients,
            "optimizer": sum(size for at, size in optimizer.items() if at not in model),
            "buckets": max(0, in_buckets - gradients),
        }


def _optimizer_tensors(replica: Replica) -> Iterator[Tensor]:
    """Yield the state of all optimizers, and what else is a part of the job's state."""
    for part in getattr(replica.optimizer, "parts", {"": replica.optimizer}).values():
        for kept in part.state.values():
            yield from (value for value in leaves(kept) if isinstance(value, Tensor))
    yield from named_tensors(replica).values()


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of each storage by its address; released ones have none."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {one.data_ptr(): one.nbytes() for one in storages if one.nbytes()}


def process_bytes(device: torch.device) -> int:
    """Return the peak of the whole process; on a GPU, of torch's memory since the step began."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@contextlib.contextmanager
def activation_peak(model: nn.Module, device: torch.device) -> Iterator[list[int]]:
    """Measure what forward and backward keep inside, at its peak.

    Yields:
        a list that has the peak in bytes afterwards; it stays empty if it cannot be measured: in a
        compiled model, whose code is made for the hooks that are there, and where a strategy saves
        tensors in a way of its own.
    """
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        peak.append(max(0, torch.cuda.max_memory_allocated(device) - before))
    elif any(type(module).__name__ == _COMPILED for module in model.modules()):
        yield peak
    else:
        with saved_for_backward(model) as saved:
            yield peak
        peak += [saved.peak_bytes] if saved.peak_bytes else []
