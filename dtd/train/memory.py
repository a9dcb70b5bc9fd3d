"""The memory of a job in this process, measured in an early step of each generation.

The first step of a generation is left out: the optimizer makes its state in it.  In the second one
everything that lies in tensors is counted once, by its storage, at the end of backward.  On a GPU
the allocator's own counters tell what forward and backward allocate at their peak.  On a CPU the
peak of what autograd keeps for backward is counted instead, by hooks on the tensors that it saves:
torch's profiler would see every allocation, but it has to start in the thread that initialised it,
and processes with a process group crashed or hung when a generation ended while it ran.  So that
one step takes longer, and no other step costs anything.

The figures go to the coordinator with heartbeats (`dtd.doctor.memory` names the parts).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from dtd.doctor.state_memory import StateSize, state_parts
from dtd.strategy.nested import leaves
from dtd.train.footprint import GRADIENTS_IN_POOL, division_of, memory_parts, saved_for_backward
from dtd.train.record import MemoryRecord
from dtd.train.state.tensors import OPTIMIZER, named_tensors

if TYPE_CHECKING:
    from dtd.train.session import JobSession
    from dtd.train.state.replica import Replica

MEASURED_STEP: Final = 2
"""Step of a generation whose memory is measured."""

_COMPILED: Final = "OptimizedModule"
_STATUS: Final = Path("/proc/self/status")
_NOTHING: Final[AbstractContextManager[None]] = contextlib.nullcontext()


class MemoryMeter:
    """Measures one step of each generation.

    Args:
        size: of the whole state.

    Attributes:
        parts: measured in this generation; empty before it.
    """

    def __init__(self, size: StateSize) -> None:
        self.parts: dict[str, int] = {}
        # Measured at the end of backward, when all gradients are in their buckets.
        self._size = replace(size, gradient_bytes=0)
        self._steps = 0
        self._world_size = 1

    def regroup(self, world_size: int) -> None:
        """A generation begins."""
        self.parts, self._steps, self._world_size = {}, 0, world_size

    def step(self, session: JobSession) -> AbstractContextManager[None]:
        """Return the context of a step's forward and backward."""
        self._steps += 1
        return self._measured(session) if self._steps == MEASURED_STEP else _NOTHING

    @contextlib.contextmanager
    def _measured(self, session: JobSession) -> Iterator[None]:
        with activation_peak(session.replica.model, session.device) as peak:
            yield
        self.parts = held_parts(session)
        if peak:
            self.parts["activations"] = max(peak)
        self._report(session)

    def copied(self, session: JobSession) -> None:
        """A checkpoint has been taken: its copy of the state is there while it is written."""
        copied = session.checkpoints.snapshot_bytes
        if self.parts and copied != self.parts["snapshots"]:
            self.parts["snapshots"] = copied
            self._report(session)

    def _report(self, session: JobSession) -> None:
        self.parts["process"] = process_bytes(session.device)
        predicted = state_parts(self._size, division_of(session.spec), self._world_size)
        predicted["snapshots"] = memory_parts(session)["snapshot"]
        session.reporter.memory_measured(
            MemoryRecord(measured=dict(self.parts), predicted=predicted)
        )


def held_parts(session: JobSession) -> dict[str, int]:
    """Return the bytes of what lies in tensors at the end of backward, each storage once."""
    replica, strategy = session.replica, session.strategy
    model = _storages([*replica.model.parameters(), *replica.model.buffers()])
    optimizer = _storages(_optimizer_tensors(replica))
    for one in replica.shards.tensors() if replica.shards is not None else []:
        of_one = _storages(piece.values for piece in one.pieces)
        (optimizer if one.name.startswith(OPTIMIZER) else model).update(of_one)
    gradients = sum(p.grad.nbytes for _, p in replica.trained if p.grad is not None)
    in_buckets = strategy.size_bytes
    if division_of(session.spec).stage >= GRADIENTS_IN_POOL:
        gradients = max(gradients, in_buckets)
    return {
        "parameters": sum(model.values()),
        "gradients": gradients,
        "optimizer": sum(size for at, size in optimizer.items() if at not in model),
        "buckets": max(0, in_buckets - gradients),
        "snapshots": session.checkpoints.snapshot_bytes,
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


# --- memory that a step allocates --------------------------------------------------------------


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
