"""A replica's whole state as named tensors plus JSON, and the hash over all of it.

    model.<name>                parameters and persistent buffers (`dtd.train.state.weights`)
    ema.<name>                  averages of the trained parameters (`dtd.train.state.averages`)
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
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import torch
import xxhash
from torch import Tensor

from dtd.checkpoint.format import Progress, canonical_json, no_progress
from dtd.engine.ledger import Ledger
from dtd.engine.shard_digests import ShardDigests
from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.errors import CheckpointError, TaskError
from dtd.strategy.nested import decoded, encoded, mapped, tensor_names
from dtd.strategy.sharded.state import ShardedState
from dtd.train.bulk import add_to_hash, copy_into
from dtd.train.early_stop import EarlyStop
from dtd.train.optimizer.fit import check_entries, check_groups, own_numbers
from dtd.train.state.replica import Replica
from dtd.train.state.weights import differs_from_fixed, model_tensors, plain_name

Value = TypeVar("Value")

MODEL = "model."
AVERAGE = "ema."
OPTIMIZER = "optimizer."
GROUPS = "optimizer_groups."
STRATEGY = "strategy."
TASK = "task."

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Element types by the name that safetensors gives them."""

_NOT_STATE = ("params", "param_names", "foreach", "fused")
"""Keys of an optimizer's groups that are no state: each rank chooses its kernels, and stored names
follow the optimizer's own order."""

_PARAMETERS = "optimizer_parameters"
"""In the metadata: names of the parameters of each group.  States of dtd 0.1.0 have none."""

REPLICATED = "replicated"
_WHOLE = (REPLICATED, "sharded")
"""Strategies whose states have the same content."""

SHARDS = "optimizer_shards"
"""In the metadata of a common part: element types of the optimizer state that is sharded."""
_MOST_NAMED = 4
_NUMBERED = re.compile(r"^(optimizer\.|)(\d+)\.")

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Name of a tensor's element type.

    Raises:
        TaskError: states cannot hold it.
    """
    if dtype not in _NAMES:
        raise TaskError(f"{name} has element type {dtype}, which states cannot hold")
    return _NAMES[dtype]


def named_tensors(replica: Replica) -> dict[str, Tensor]:
    """Live tensors of the state, in an order that depends on the model alone.

    Raises:
        TaskError: the model's state holds something that is no tensor.
    """
    tensors = {MODEL + name: tensor for name, tensor in _model_tensors(replica).items()}
    if replica.averages is not None:
        tensors |= {AVERAGE + name: value for name, value in replica.averages.named.items()}
    kept, _ = _kept(replica)
    tensors |= dict(sorted(kept.items(), key=lambda item: optimizer_place(item[0])))
    tensors |= {STRATEGY + name: value for name, value in replica.shared.items()}
    own, _ = replica.own.parts()
    return tensors | {TASK + name: tensor for name, tensor in own.items()}


def _model_tensors(replica: Replica) -> dict[str, Tensor]:
    """Tensors of the model; without trained parameters if these are sharded."""
    tensors = model_tensors(replica.model)
    if replica.shards is None:
        return tensors
    trained = {plain_name(name) for name, _ in replica.trained}
    return {name: tensor for name, tensor in tensors.items() if name not in trained}


def _kept(replica: Replica) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what optimizer and schedule keep: tensors, and JSON that refers to some of them.

    Raises:
        TaskError: they keep something else.
    """
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
            if key not in _NOT_STATE
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
    state: dict[int, dict[str, Any]] = replica.optimizer.state_dict()["state"]
    for number, values in state.items():
        if not (isinstance(number, int) and isinstance(values, Mapping)):
            raise TaskError(
                f"the optimizer keeps {number!r} beside what it keeps for each parameter",
                remedy="keep it in the parameters' state or in their groups",
            )
    return state


def metadata(replica: Replica) -> dict[str, Any]:
    """The state's part that is not tensors, fit for JSON."""
    _, kept = _kept(replica)
    # Beside replicated training, which is what states of dtd 0.1.0 are of and which needs no name.
    strategy = {} if replica.strategy in _WHOLE else {"strategy": replica.strategy}
    shards = {} if replica.shards is None else {SHARDS: _entries(replica.shards)}
    return {
        **strategy,
        **shards,
        "step": replica.step,
        "updates": replica.updates,
        "skipped_in_row": replica.skipped_in_row,
        "epoch": replica.epoch,
        "offset": replica.offset,
        "ledger": replica.ledger.to_mapping(),
        "loss_scale": replica.scaler.scale,
        "loss_scale_good_steps": replica.scaler.good_steps,
        _PARAMETERS: replica.grouped,
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


def load_state(
    replica: Replica,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    progress: Progress = no_progress,
) -> None:
    """Make a replica hold this state; the optimizer may keep the tensors that are given.

    If it is the common part of a sharded state, the replica holds nothing else then, until its
    parts are loaded (`ShardedState.load`) or come from other ranks.

    Raises:
        CheckpointError: the state is not one of this model and optimizer.
    """
    _check_strategy(replica, about)
    if SHARDS in about:
        _load_weights(_common_model(replica), tensors, progress)
    else:
        load_weights(replica, tensors, progress)
    _load_schedule(replica, about.get("schedule"), tensors)
    try:
        _load_optimizer(replica, tensors, about)
        replica.scaler.scale = float(about["loss_scale"])
        replica.scaler.good_steps = int(about["loss_scale_good_steps"])
        replica.step, replica.updates = int(about["step"]), int(about["updates"])
        replica.skipped_in_row = int(about["skipped_in_row"])
        replica.epoch, replica.offset = int(about["epoch"]), int(about["offset"])
        replica.ledger = Ledger.from_mapping(about["ledger"])
        replica.early_stop = EarlyStop(**about.get("early_stop", {}))  # dtd 0.1.0 had none
        replica.ended_of = int(about.get("ended_of", 0))
        replica.stream = about.get("stream")
    except KeyError as error:
        raise CheckpointError(
            f"the state has no {error.args[0]!r}", remedy="another dtd wrote it: use that one"
        ) from error
    except (ValueError, TypeError, IndexError) as error:
        raise CheckpointError(f"the state does not fit this job's optimizer: {error}") from error
    _load_shared(replica, tensors, progress)
    if replica.averages is not None:
        replica.averages.load(
            {n.removeprefix(AVERAGE): t for n, t in tensors.items() if n.startswith(AVERAGE)},
            progress,
        )
    own = {n.removeprefix(TASK): t for n, t in tensors.items() if n.startswith(TASK)}
    replica.own.load(own, about.get("task", {}))


def _check_strategy(replica: Replica, about: Mapping[str, Any]) -> None:
    known = about.get("strategy", REPLICATED)
    if SHARDS in about and replica.shards is None:
        raise CheckpointError(
            "the state is a part of a sharded one", remedy="fetch all of its parts"
        )
    if known != replica.strategy and not {known, replica.strategy} <= {*_WHOLE}:
        raise CheckpointError(
            f'the state is of a job with [strategy] name = "{known}", and this one has'
            f' "{replica.strategy}"',
            remedy="keep the strategy, or start from its weights only",
        )


def _load_shared(replica: Replica, tensors: Mapping[str, Tensor], progress: Progress) -> None:
    given = {
        plain_name(n.removeprefix(STRATEGY)): t
        for n, t in tensors.items()
        if n.startswith(STRATEGY)
    }
    live = {plain_name(n): t for n, t in replica.shared.items()}
    if given.keys() != live.keys() or any(given[n].shape != t.shape for n, t in live.items()):
        raise CheckpointError(
            f"what the strategy {replica.strategy} keeps in the state is of another model",
            remedy="use the same [task] table, or start from its weights only",
        )
    for name, tensor in live.items():
        copy_into(tensor, given[name], progress)


def _load_schedule(replica: Replica, state: Any, tensors: Mapping[str, Tensor]) -> None:
    if (replica.schedule is None) != (state is None):
        raise CheckpointError(
            f"the state has {'no' if state is None else 'a'} schedule of the task, and this job's"
            f" task has {'one' if state is None else 'none'}",
            remedy="use the task that made it, or start from its weights only",
        )
    if replica.schedule is not None:
        replica.schedule.load(state, tensors)


def load_weights(
    replica: Replica, tensors: Mapping[str, Tensor], progress: Progress = no_progress
) -> None:
    """Take over parameters and buffers only.

    Raises:
        CheckpointError: they are not those of this model.
    """
    if replica.shards is not None:
        replica.shards.make_room()
    live = {MODEL + name: tensor for name, tensor in model_tensors(replica.model).items()}
    _load_weights(live, tensors, progress)
    if replica.averages is not None:
        replica.averages.begin()


def _common_model(replica: Replica) -> dict[str, Tensor]:
    return {MODEL + name: tensor for name, tensor in _model_tensors(replica).items()}


def _load_weights(
    live: Mapping[str, Tensor], tensors: Mapping[str, Tensor], progress: Progress
) -> None:
    given = {
        n if n in live else plain_name(n): t for n, t in tensors.items() if n.startswith(MODEL)
    }
    unfit = _unfit(live, given)
    if unfit:
        raise CheckpointError(
            f"the state is of another model: {'; '.join(unfit[:_MOST_NAMED])}"
            + (f"; and {len(unfit) - _MOST_NAMED} more" if len(unfit) > _MOST_NAMED else ""),
            remedy="use the same task with the same [task] table",
        )
    for name, tensor in live.items():
        copy_into(tensor, given[name], progress)


def _unfit(live: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Describe tensors that are in one model only, or have another shape or type there."""
    found = [f"{_bare(name)} is only in the state" for name in given if name not in live]
    for name, tensor in live.items():
        if name not in given:
            found.append(f"{_bare(name)} is only in the model")
        elif given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            found.append(
                f"{_bare(name)} is {tuple(given[name].shape)} {given[name].dtype}, the model's"
                f" {tuple(tensor.shape)} {tensor.dtype}"
            )
        elif other := differs_from_fixed(_bare(name), given[name], tensor):
            found.append(other)
    return found


def _bare(name: str) -> str:
    """Return a tensor's name in the model."""
    return name.removeprefix(MODEL)


def own_entries(
    replica: Replica, about: Mapping[str, Any], entries: Mapping[str, Value]
) -> dict[str, Value]:
    """Entries of a state, with the numbers that their parameters have in this replica's optimizer.

    Args:
        replica: takes the state over.
        about: the state's metadata.
        entries: by `index.key` or `optimizer.index.key`; other names stay as they are.

    Raises:
        CheckpointError: the two optimizers have other parameters.
    """
    if _PARAMETERS not in about:
        return dict(entries)
    numbers = own_numbers(replica.grouped, about[_PARAMETERS])
    return {
        _NUMBERED.sub(lambda found: f"{found[1]}{numbers[int(found[2])]}.", name): value
        for name, value in entries.items()
    }


def _load_optimizer(
    replica: Replica, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    shards = replica.shards
    if shards is not None:
        shards.unbind()
    mine = replica.optimizer.state_dict()["param_groups"]
    saved = [
        {key: decoded(value, tensors) for key, value in group.items()}
        for group in about["optimizer_groups"]
    ]
    check_groups(mine, saved, ours=_NOT_STATE)
    state: dict[int, dict[str, Any]] = {}
    for name, value in own_entries(replica, about, _saved_entries(tensors, about)).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    fused = {number for group in mine if group.get("fused") for number in group["params"]}
    check_entries(_in_order(replica), state, exact=fused)
    groups = []
    for own, group in zip(mine, saved, strict=True):
        kept = {key: value for key, value in group.items() if key not in _NOT_STATE}
        restored = {key: _like(own[key], value) for key, value in kept.items()}
        groups.append({**restored, **{key: own[key] for key in _NOT_STATE if key in own}})
    replica.optimizer.load_state_dict({"state": state, "param_groups": groups})
    _restore_types(replica, state)
    if shards is not None:
        missing = about.get(SHARDS)
        there = own_entries(replica, about, missing or {})
        entries = {name: DTYPES[dtype] for name, dtype in there.items()}
        shards.bind(replica.optimizer, WHOLE if missing is None else NOTHING, entries)


def _saved_entries(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved optimizer's entries, by `index.key`."""
    scalars: Mapping[str, Any] = about["optimizer_scalars"]
    inner = set(tensor_names(list(scalars.values())))
    whole = {
        name.removeprefix(OPTIMIZER): tensor
        for name, tensor in tensors.items()
        if name.startswith(OPTIMIZER) and name not in inner
    }
    return whole | {name: decoded(value, tensors) for name, value in scalars.items()}


def _like(own: Any, value: Any) -> Any:
    """Return a group's value, as a tuple or on the device of the one that it replaces."""
    if isinstance(own, Tensor) and isinstance(value, Tensor):
        return value.to(own.device)
    return tuple(value) if isinstance(own, tuple) else value


def _restore_types(replica: Replica, state: Mapping[int, Mapping[str, Any]]) -> None:
    """Take entries over as they are.

    torch has rounded tensors to the types of their parameters, and takes text for a list.
    """
    live = replica.optimizer.state
    for number, (_, parameter) in enumerate(_in_order(replica)):
        move = partial(Tensor.to, device=parameter.device)
        for key, value in state.get(number, {}).items():
            if isinstance(value, str | list | tuple | dict):
                live[parameter][key] = mapped(value, move)
            elif isinstance(value, Tensor) and live[parameter][key].dtype != value.dtype:
                live[parameter][key] = value.to(parameter.device)


def _in_order(replica: Replica) -> list[tuple[str, Tensor]]:
    """Parameters with their names, in the order in which the optimizer numbers them."""
    groups = zip(replica.grouped, replica.optimizer.param_groups, strict=True)
    return [pair for names, group in groups for pair in zip(names, group["params"], strict=True)]
