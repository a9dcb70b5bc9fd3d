"""A replica's whole state as named tensors plus JSON, and the hash over all of it.

    model.<name>                parameters and persistent buffers (`dtd.train.state.weights`)
    ema.<name>                  averages of the trained parameters (`dtd.train.state.weights`)
    optimizer.<index>.<key>     optimizer state of the optimizer's index-th parameter
    optimizer.<index>.<key>/..  tensors in a list or a dict that the optimizer keeps
    optimizer_groups.<n>.<key>  a tensor in the n-th parameter group, such as its learning rate
    schedule.<name>             tensors of the task's schedule
    strategy.<name>             what the job's strategy keeps beside the model, such as momentum
    task.<name>                 tensors that the task keeps itself

Everything that is not a tensor is metadata: counters, loss scale, parameter groups, and the names
of the parameters in them, by which the receiver of a state finds its own numbers.  Equal states
give equal names, bytes and metadata, hence equal digests, on whatever rank and after whatever
history.  The same form serves digests, state transfer and checkpoints.

If the state is sharded (`dtd.strategy.sharded`), a rank has only a part of the trained parameters
and of the optimizer state.  Then all this is about the *common* part, which every rank has: the
rest of the model, the optimizer's scalars, metadata.  The other part is `Replica.shards`.  A whole
state is the same as without shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor

from dtd.checkpoint.format import Progress, canonical_json, no_progress
from dtd.engine.digests import ShardDigests
from dtd.engine.shards import ShardSet
from dtd.errors import TaskError
from dtd.strategy.nested import encoded
from dtd.strategy.sharded.state import ShardedState
from dtd.train.state.replica import Replica
from dtd.train.state.weights import DTYPES, add_to_hash, model_tensors, plain_name

MODEL = "model."
AVERAGE = "ema."
OPTIMIZER = "optimizer."
GROUPS = "optimizer_groups."
STRATEGY = "strategy."
TASK = "task."

NOT_STATE = ("params", "param_names", "foreach", "fused")
"""Keys of an optimizer's groups that are no state: each rank chooses its kernels, and stored names
follow the optimizer's own order."""

PARAMETERS = "optimizer_parameters"
"""In the metadata: names of the parameters of each group.  States of dtd 0.1.0 have none."""

REPLICATED = "replicated"
WHOLE_STRATEGIES = (REPLICATED, "sharded")
"""Strategies whose states have the same content."""

SHARDS = "optimizer_shards"
"""In the metadata of a common part: element types of the optimizer state that is sharded."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Name of a tensor's element type."""
    if dtype not in _NAMES:
        raise TaskError(f"{name} has element type {dtype}, which states cannot hold")
    return _NAMES[dtype]


def named_tensors(replica: Replica) -> dict[str, Tensor]:
    """Live tensors of the state, in an order that depends on the model alone."""
    tensors = {MODEL + name: tensor for name, tensor in common_tensors(replica).items()}
    if replica.averages is not None:
        tensors |= {AVERAGE + name: value for name, value in replica.averages.named.items()}
    kept, _ = _kept(replica)
    tensors |= dict(sorted(kept.items(), key=lambda item: optimizer_place(item[0])))
    tensors |= {STRATEGY + name: value for name, value in replica.shared.items()}
    own, _ = replica.own.parts()
    return tensors | {TASK + name: tensor for name, tensor in own.items()}


def common_tensors(replica: Replica) -> dict[str, Tensor]:
    """Tensors of the model; without trained parameters if these are sharded."""
    tensors = model_tensors(replica.model)
    if replica.shards is None:
        return tensors
    trained = {plain_name(name) for name, _ in replica.trained}
    return {name: tensor for name, tensor in tensors.items() if name not in trained}


def _kept(replica: Replica) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what optimizer and schedule keep: tensors, and JSON that refers to some of them."""
    tensors: dict[str, Tensor] = {}
    scalars = {}
    for index, values in sorted(_optimizer_state(replica).items()):
        for key, value in sorted(values.items()):
            json = _encoded_entry(f"{index}.{key}", value, tensors)
            if not isinstance(value, Tensor):
                scalars[f"{index}.{key}"] = json
    groups = [
        {
            # A tuple is a list here; what the live group has says which it is.
            key: encoded(
                list(value) if isinstance(value, tuple) else value,
                f"{GROUPS}{number}.{key}",
                tensors,
                keeps=f"the optimizer keeps {key}",
            )
            for key, value in sorted(group.items())
            if key not in NOT_STATE
        }
        for number, group in enumerate(replica.optimizer.param_groups)
    ]
    schedule = None if replica.schedule is None else replica.schedule.state(tensors)
    return tensors, {
        "optimizer_scalars": scalars,
        "optimizer_groups": groups,
        "schedule": schedule,
    }


def _encoded_entry(entry: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    _, _, key = entry.partition(".")
    return encoded(value, OPTIMIZER + entry, tensors, keeps=f"the optimizer keeps {key}")


def optimizer_place(name: str) -> tuple[int, int, str]:
    """Return the place of a tensor among those that optimizer and schedule keep."""
    if not name.startswith(OPTIMIZER):
        return 1, 0, name
    index, _, key = name.removeprefix(OPTIMIZER).partition(".")
    return 0, int(index), key


def _optimizer_state(replica: Replica) -> dict[int, dict[str, Any]]:
    """State by number of the parameter; none where it is this rank's own."""
    if replica.optimizer_is_local:
        return {}
    if replica.shards is not None:
        return replica.shards.common()
    return dict(replica.optimizer.state_dict()["state"])


def metadata(replica: Replica) -> dict[str, Any]:
    """The state's part that is not tensors, fit for JSON."""
    _, kept = _kept(replica)
    # Beside replicated training, which is what states of dtd 0.1.0 are of and which needs no name.
    strategy = {} if replica.strategy in WHOLE_STRATEGIES else {"strategy": replica.strategy}
    shards = {} if replica.shards is None else {SHARDS: _entries(replica.shards)}
    return {
        **strategy,
        **shards,
        "step": replica.step,
        "updates": replica.updates,
        "skipped_in_row": replica.skipped_in_row,
        "epoch": replica.epoch,
        "offset": replica.offset,
        "ledger": dataclasses.asdict(replica.ledger),
        "loss_scale": replica.scaler.scale,
        "loss_scale_good_steps": replica.scaler.good_steps,
        PARAMETERS: replica.grouped,
        "early_stop": dataclasses.asdict(replica.early_stop),
        "ended_of": replica.ended_of,
        "stream": replica.stream,
        "task": replica.own.parts()[1],
        **kept,
    }


def digest_of(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], progress: Progress = no_progress
) -> bytes:
    """16 bytes over names, types, shapes, contents and metadata."""
    content = xxhash.xxh3_128()
    shapes = [[name, dtype_name(name, t.dtype), list(t.shape)] for name, t in tensors.items()]
    content.update(canonical_json([shapes, about]))
    for tensor in tensors.values():
        add_to_hash(content, tensor, progress)
    return bytes(content.digest())


def state_digest(replica: Replica, progress: Progress = no_progress) -> bytes:
    """Digest of a live state, or its common part; equal on all replicas or something is broken."""
    return digest_of(named_tensors(replica), metadata(replica), progress)


def shard_digests(replica: Replica, progress: Progress = no_progress) -> ShardDigests:
    """Hash the part of a sharded state that this rank holds, segment by segment."""
    shards = replica.shards
    assert shards is not None, "the state is not sharded"
    cut = shards.division.segments
    held = {
        index: ShardSet.segments([index], cut)
        for index in range(cut)
        if shards.sliced.covers(ShardSet.segments([index], cut))
    }
    return ShardDigests(
        cut=cut,
        common=state_digest(replica, progress),
        segments={index: shards_digest(shards, part, progress) for index, part in held.items()},
    )


def shards_digest(shards: ShardedState, part: ShardSet, progress: Progress = no_progress) -> bytes:
    """16 bytes over a part of the state; this rank holds all of that part."""
    content = xxhash.xxh3_128()
    for bucket, elements in enumerate(shards.buckets()):
        for name, column in shards.columns(bucket).items():
            content.update(canonical_json([bucket, name]))
            for start, stop in part.ranges(elements):
                for _, values in column.parts(start, stop):
                    add_to_hash(content, values, progress)
    return bytes(content.digest())


def _entries(shards: ShardedState) -> dict[str, str]:
    return {name: dtype_name(name, dtype) for name, dtype in shards.entries().items()}


def on_host(tensor: Tensor) -> Tensor:
    """The tensor itself if it lies contiguously in host memory, else a copy that does."""
    return tensor.detach().cpu().contiguous()
