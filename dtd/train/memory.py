"""The memory that a job needs in one worker: available, calculated, measured.

*Available* is what this process can still take: of its GPU, of the host, of its control groups
(cgroups(7)), which limit a service or container below the memory of its host.  What a group has in
use counts, except what the kernel gives back before it ends a process: pages of files, also those
in active use, and its own caches.  Both hierarchies are read, the unified one and version 1.

*Calculated* before the first step: parameters, buckets (the gradients' home, and narrow twins that
travel in their place), the optimizer's state, the copy that a checkpoint makes.  A job that does
not fit is refused.

*Measured* in one early step of each generation: what lies in tensors, and what forward and backward
allocate at their peak.  On a CPU the peak of what autograd keeps for backward is counted, by hooks
on the tensors that it saves: torch's profiler has to start in the thread that initialised it, and
processes with a process group crashed or hung when a generation ended while it ran.  The figures go
to the coordinator with heartbeats (`dtd.doctor.memory` names the parts).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.doctor.memory import (
    REPLICATED,
    TRAINING_BYTES,
    Division,
    Room,
    StateSize,
    shortage,
    state_parts,
)
from dtd.errors import TaskError
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SHARDED_STAGES
from dtd.process_memory import LARGEST_IN_HEAP_BYTES, resident_bytes
from dtd.strategy.api import Strategy
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.nested import leaves
from dtd.strategy.sharded.units import units_of
from dtd.strategy.sharded.wire_pool import pool_bytes
from dtd.train.record import MemoryRecord, Reporter
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import MODEL, OPTIMIZER, named_tensors

_ROOT: Final = Path("/")
_UNLIMITED_BYTES: Final = 1 << 60
"""Numbers of this size mean "unlimited" in version 1."""
_UNIFIED: Final = ("memory.max", "memory.current", "")
_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_RECLAIMABLE: Final = ("inactive_file", "active_file", "slab_reclaimable")
"""Memory that the kernel can give back, by field; shared memory is in none of them."""


def available_memory(device: torch.device, root: Path = _ROOT) -> Room:
    """Return what can still be allocated, and what limits it.

    Args:
        device: the model's device.
        root: of the file system.
    """
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Room(bytes=free + cached, limit=f"free memory of {device}")
    rooms = [Room(bytes=_host_bytes(root), limit="available memory of the host"), *_groups(root)]
    return min(rooms, key=lambda room: room.bytes)


def _host_bytes(root: Path) -> int:
    """Free memory of the host, with the memory that the kernel can give back."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _groups(root: Path) -> Iterator[Room]:
    """Yield the free memory of each group that contains this process and has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # a kernel without control groups
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, files = root / "sys/fs/cgroup", _UNIFIED
        elif "memory" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            room = _left(mount / str(group).lstrip("/"), files, str(group))
            if room is not None:
                yield room


def _left(directory: Path, files: tuple[str, str, str], group: str) -> Room | None:
    """Return the free memory of one group; None without a limit, or where it cannot be seen."""
    limit_name, usage_name, prefix = files
    try:
        limit_text = (directory / limit_name).read_text().strip()
        used_bytes = int((directory / usage_name).read_text())
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except OSError:  # a container does not see the groups around it
        return None
    if limit_text == "max" or int(limit_text) >= _UNLIMITED_BYTES:
        return None
    reclaimable_bytes = sum(int(stat.get(prefix + name, 0)) for name in _RECLAIMABLE)
    left = int(limit_text) - used_bytes + reclaimable_bytes
    return Room(bytes=max(0, left), limit=f"memory limit of the control group {group}")


_MIB: Final = 1 << 20
_STATE_TENSORS: Final[Mapping[str, int]] = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "Adadelta": 2,
    "Rprop": 2,
    "RMSprop": 1,
    "Adagrad": 1,
    "ASGD": 1,
}
"""Tensors of a parameter's shape that torch's optimizers keep; SGD none without momentum."""
_STATE_OPTIONS: Final = ("momentum", "amsgrad", "centered")
"""Settings of a group, each of which adds one."""

GRADIENTS_IN_POOL: Final = 2
"""From this stage on, all memory of the gradients' buckets is a home of gradients."""
_TIED: Final = 3
"""Gradients of a parameter with two uses: of the first one, of the second one, and their sum."""
_KEPT: Final = 4
"""Gradients for which the heap has room, as measured: freed memory stays there, in parts."""


# What an interpreter holds that has loaded torch and no model yet.
RUNTIME_BYTES: Final = resident_bytes()


def memory_parts(
    replica: Replica,
    strategy: Strategy,
    spec: JobSpec,
    device: torch.device,
    *,
    size: StateSize,
    world_size: int,
) -> dict[str, int]:
    """Bytes of each part in a step, after the first one, named as `dtd.doctor.memory` names them.

    What the state needs is predicted, but for the optimizer's part, which is measured.
    """
    in_buckets = strategy.size_bytes
    if replica.shards is None or spec.strategy.stage < GRADIENTS_IN_POOL:
        in_buckets = min(in_buckets, sum(_bytes(one) for _, one in replica.trained))
    beside_model = [t for name, t in named_tensors(replica).items() if not name.startswith(MODEL)]
    divided = 0 if replica.shards is None else replica.shards.size_bytes
    return {
        **state_parts(size, division_of(spec), world_size),
        "buckets": strategy.size_bytes - in_buckets,
        "optimizer": sum(map(_bytes, beside_model)) + 2 * _local_bytes(replica) + divided,
        "snapshot": snapshot_bytes(replica),
        "runtime": RUNTIME_BYTES if device.type == "cpu" else 0,
    }


def snapshot_bytes(replica: Replica) -> int:
    """Return the bytes of a copy of this rank's state, or of its part of it."""
    shards = [] if replica.shards is None else replica.shards.tensors()
    held = sum(_bytes(piece.values) for one in shards for piece in one.pieces)
    return held + sum(_bytes(tensor) for tensor in named_tensors(replica).values())


def state_size(replica: Replica, spec: JobSpec, *, shows_whole: bool) -> StateSize:
    """Return the sizes of a state, also before the first step has created the optimizer's part.

    Args:
        replica: the state.
        spec: the job.
        shows_whole: whether the model is evaluated, or shown to the task.
    """
    trained = sum(_bytes(parameter) for _, parameter in replica.trained)
    model = [*replica.model.parameters(), *replica.model.buffers()]
    plan = plan_buckets(
        parameter_shapes(replica.trained),
        bucket_bytes=int(spec.sync.bucket_mib * _MIB),
        first_bucket_bytes=int(spec.sync.first_bucket_mib * _MIB),
    )
    sizes = [bucket.elements * bucket.item_bytes for bucket in plan.buckets]
    names = _names(replica.model)
    return StateSize(
        parameter_bytes=trained,
        common_bytes=sum(_bytes(tensor) for tensor in model) - trained,
        optimizer_bytes=optimizer_bytes(replica.optimizer),
        pool_bytes=pool_bytes(sizes) * (1 if spec.strategy.codec == "none" else 2),
        gathered_bytes=_gathered_bytes(replica, names, int(spec.sync.bucket_mib * _MIB)),
        gradient_bytes=max(_gradients(p, names[p]) for _, p in replica.trained),
        shows_whole=shows_whole,
    )


def _names(model: nn.Module) -> Counter[nn.Parameter]:
    """Return under how many names a model has each parameter."""
    return Counter(one for _, one in model.named_parameters(remove_duplicate=False))


def _gradients(parameter: nn.Parameter, names: int) -> int:
    """Return the bytes of one parameter's gradients until they are in a bucket, at most."""
    kept = _KEPT if _bytes(parameter) <= LARGEST_IN_HEAP_BYTES else 1
    return _bytes(parameter) * max(kept, _TIED if names > 1 else 1)


def _gathered_bytes(replica: Replica, names: Counter[nn.Parameter], bucket_bytes: int) -> int:
    """Return the bytes of the units that are in memory at a time, at most.

    One is computed with and another one prefetched.  A unit with tied parameters is used outside of
    its own forward, so it stays until its gradients are there.
    """
    trained = [parameter for _, parameter in replica.trained]
    try:
        units = units_of(replica.model, trained, bucket_bytes=bucket_bytes)
    except TaskError:  # a model that cannot be divided, which is said where it is to be
        return sum(_bytes(parameter) for parameter in trained)
    stays, sizes = 0, [0]
    for unit in units:
        size_bytes = sum(_bytes(trained[index]) for index in unit.parameters)
        if any(names[trained[index]] > 1 for index in unit.parameters):
            stays += size_bytes
        else:
            sizes.append(size_bytes)
    return stays + sum(sorted(sizes)[-2:])


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of state that an optimizer keeps in the shape of its parameters.

    Known of torch's own classes and what is derived from them; 0 for others, before their first
    step.
    """
    total = 0
    for part in getattr(optimizer, "parts", {"": optimizer}).values():
        for group in part.param_groups:
            tensors = _tensors_a_parameter(part, group)
            total += tensors * sum(_bytes(one) for one in group["params"] if one.requires_grad)
    return total


def _tensors_a_parameter(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> int:
    """Return how many tensors of a parameter's shape the optimizer keeps for each."""
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    known = [count for name, count in _STATE_TENSORS.items() if name in names]
    options = sum(bool(group.get(option)) for option in _STATE_OPTIONS)
    return max(known, default=0) + options


def check_room(
    size: StateSize, spec: JobSpec, device: torch.device, *, serves: bool = False
) -> None:
    """Refuse a job whose state does not fit this worker in the smallest world it trains in.

    Args:
        size: of the state, before anything is divided.
        spec: the job.
        device: where the state is.
        serves: this is a parameter server, which may have to hold all of it alone.

    Raises:
        TaskError: with the numbers, and the settings with which it would fit.
    """
    room = available_memory(device)
    held = size.parameter_bytes + size.common_bytes
    process = 0 if device.type == "cuda" else TRAINING_BYTES
    short = shortage(
        size,
        division_of(spec, serves=serves),
        replace(
            room,
            bytes=max(0, room.bytes + held - process),
            used_bytes=max(0, resident_bytes() - held) + process if process else 0,
        ),
        world_size=1 if serves else spec.elastic.min_workers,
        most_workers=spec.elastic.max_workers,
        stages=SHARDED_STAGES,
    )
    if short is not None:
        raise TaskError(short.message, remedy=short.remedy)


def division_of(spec: JobSpec, *, serves: bool = False) -> Division:
    """Return how a job divides its state, as a worker or a parameter server sees it."""
    table = spec.strategy
    stage = table.stage if table.name in SHARDED else REPLICATED
    others_own = stage != REPLICATED and table.owners == "servers" and not serves
    return Division(stage=stage, mirrors=table.mirrors, others_own=others_own)


class SavedBytes:
    """Bytes that autograd holds for backward; a storage that several tensors share counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._holders: Counter[int] = Counter()
        self._own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def save(self, tensor: Tensor) -> _Saved:
        """A tensor is saved."""
        return _Saved(self, tensor)

    def hold(self, tensor: Tensor) -> None:
        """Count a tensor's storage in."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._own:
            return
        self._holders[storage.data_ptr()] += 1
        if self._holders[storage.data_ptr()] == 1:
            self._live_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self._live_bytes)

    def release(self, tensor: Tensor) -> None:
        """Count it out again."""
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


def _local_bytes(replica: Replica) -> int:
    """The optimizer's state where it is the rank's own; a copy of it is kept in every round."""
    if not replica.optimizer_is_local:
        return 0
    kept = leaves(replica.optimizer.state)
    return sum(_bytes(value) for value in kept if isinstance(value, Tensor))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


MEASURED_STEP: Final = 2
"""Step of a generation whose memory is measured."""

_COMPILED: Final = "OptimizedModule"
_STATUS: Final = Path("/proc/self/status")
_NOTHING: Final[AbstractContextManager[None]] = contextlib.nullcontext()


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
        """A generation begins."""
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
