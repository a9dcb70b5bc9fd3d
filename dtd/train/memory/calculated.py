"""The memory that a job needs in one worker, calculated before its first step.

Parameters, buckets (the gradients' home, and narrow twins that travel in their place), the
optimizer's state, the copy that a checkpoint makes.  A job that does not fit is refused.  What it
then uses is measured in `dtd.train.memory.measured`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.doctor.memory import (
    REPLICATED,
    TRAINING_BYTES,
    Division,
    StateSize,
    shortage,
    state_parts,
)
from dtd.errors import TaskError
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.host.process_memory import LARGEST_IN_HEAP_BYTES, resident_bytes
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SHARDED_STAGES
from dtd.strategy.api import Strategy
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.nested import leaves
from dtd.strategy.sharded.units import units_of
from dtd.strategy.sharded.wire_pool import pool_bytes
from dtd.strategy.wire_memory import BATCH_BYTES
from dtd.train.memory.available import available_memory
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import MODEL, named_tensors

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
    copied = min(BATCH_BYTES, snapshot_bytes(replica)) if spec.strategy.copies_updates else 0
    return {
        **state_parts(size, division_of(spec), world_size),
        "buckets": strategy.size_bytes - in_buckets + copied,
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
    """Return the sizes of a state, also before the first step has created the optimizer's part."""
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


def _local_bytes(replica: Replica) -> int:
    """The optimizer's state where it is the rank's own; a copy of it is kept in every round."""
    if not replica.optimizer_is_local:
        return 0
    kept = leaves(replica.optimizer.state)
    return sum(_bytes(value) for value in kept if isinstance(value, Tensor))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
