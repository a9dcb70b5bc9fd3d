"""A replica's whole state as named tensors plus JSON, and the hash over all of it.

    model.<name>                parameters and persistent buffers (`dtd.train.state.weights`)
    ema.<name>                  averages of the trained parameters (`dtd.train.state.averages`)
    optimizer.<index>.<key>     optimizer state of the index-th trained parameter
    task.<name>                 tensors that the task keeps itself

Everything that is not a tensor is metadata: counters, loss scale, parameter groups.  Equal states
give equal names, bytes and metadata, hence equal digests, on whatever rank and after whatever
history.  The same form serves digests, state transfer and checkpoints; what is done with it is
their business.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor

from dtd.core.data.ledger import Ledger
from dtd.errors import CheckpointError, TaskError
from dtd.train.bulk import add_to_hash, copy_into
from dtd.train.early_stop import EarlyStop
from dtd.train.optimizer.fit import check_entries, check_groups
from dtd.train.record import GotOn, nobody
from dtd.train.state.replica import Replica
from dtd.train.state.weights import model_tensors, plain_name

MODEL = "model."
AVERAGE = "ema."
OPTIMIZER = "optimizer."
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

_NOT_STATE = ("params", "foreach", "fused")
"""Of an optimizer's groups: which kernels update them is the choice of whoever holds the state."""

_MOST_NAMED = 4

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
    tensors = {MODEL + name: tensor for name, tensor in model_tensors(replica.model).items()}
    if replica.averages is not None:
        tensors |= {AVERAGE + name: value for name, value in replica.averages.named.items()}
    for index, values in sorted(replica.optimizer.state_dict()["state"].items()):
        for key, value in sorted(values.items()):
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER}{index}.{key}"] = value.detach()
    own, _ = replica.own.parts()
    return tensors | {TASK + name: tensor for name, tensor in own.items()}


def metadata(replica: Replica) -> dict[str, Any]:
    """The state's part that is not tensors, fit for JSON."""
    state = replica.optimizer.state_dict()
    scalars = {
        f"{index}.{key}": _plain(f"optimizer state {key}", value)
        for index, values in sorted(state["state"].items())
        for key, value in sorted(values.items())
        if not isinstance(value, Tensor)
    }
    groups = [
        {key: _plain(key, value) for key, value in sorted(group.items()) if key not in _NOT_STATE}
        for group in state["param_groups"]
    ]
    return {
        "step": replica.step,
        "updates": replica.updates,
        "skipped_in_row": replica.skipped_in_row,
        "epoch": replica.epoch,
        "offset": replica.offset,
        "ledger": replica.ledger.to_mapping(),
        "loss_scale": replica.scaler.scale,
        "loss_scale_good_steps": replica.scaler.good_steps,
        "optimizer_scalars": scalars,
        "optimizer_groups": groups,
        "early_stop": dataclasses.asdict(replica.early_stop),
        "ended_of": replica.ended_of,
        "stream": replica.stream,
        "task": replica.own.parts()[1],
        "schedule": None if replica.schedule is None else replica.schedule.state(),
    }


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values; strict."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def digest_of(
    tensors: Mapping[str, Tensor], about: Mapping[str, Any], got_on: GotOn = nobody
) -> bytes:
    """16 bytes over names, types, shapes, contents and metadata."""
    content = xxhash.xxh3_128()
    shapes = [[name, dtype_name(name, t.dtype), list(t.shape)] for name, t in tensors.items()]
    content.update(canonical_json([shapes, about]))
    for tensor in tensors.values():
        add_to_hash(content, tensor, got_on)
    return bytes(content.digest())


def state_digest(replica: Replica, got_on: GotOn = nobody) -> bytes:
    """Digest of a live state; equal on all replicas or something is broken."""
    return digest_of(named_tensors(replica), metadata(replica), got_on)


def on_host(tensor: Tensor) -> Tensor:
    """The tensor itself if it lies contiguously in host memory, else a copy that does."""
    return tensor.detach().cpu().contiguous()


def load_state(
    replica: Replica,
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    got_on: GotOn = nobody,
) -> None:
    """Make a replica hold this state; the optimizer may keep the tensors that are given.

    Raises:
        CheckpointError: the state is not one of this model and optimizer.
    """
    load_weights(replica, tensors, got_on)
    if replica.averages is not None:
        replica.averages.load(
            {n.removeprefix(AVERAGE): t for n, t in tensors.items() if n.startswith(AVERAGE)},
            got_on,
        )
    _load_schedule(replica, about.get("schedule"))
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
    own = {n.removeprefix(TASK): t for n, t in tensors.items() if n.startswith(TASK)}
    replica.own.load(own, about.get("task", {}))


def _load_schedule(replica: Replica, state: Any) -> None:
    if (replica.schedule is None) != (state is None):
        raise CheckpointError(
            f"the state has {'no' if state is None else 'a'} schedule of the task, and this job's"
            f" task has {'one' if state is None else 'none'}",
            remedy="use the task that made it, or start from its weights only",
        )
    if replica.schedule is not None:
        replica.schedule.load(state)


def load_weights(replica: Replica, tensors: Mapping[str, Tensor], got_on: GotOn = nobody) -> None:
    """Take over parameters and buffers only.

    Raises:
        CheckpointError: they are not those of this model.
    """
    live = {n: t for n, t in named_tensors(replica).items() if n.startswith(MODEL)}
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
        copy_into(tensor, given[name], got_on)
    if replica.averages is not None:
        replica.averages.begin()


def _unfit(live: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What is in one of the two models only, or has another shape or type there."""
    found = [f"{_bare(name)} is only in the state" for name in given if name not in live]
    for name, tensor in live.items():
        if name not in given:
            found.append(f"{_bare(name)} is only in the model")
        elif given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            found.append(
                f"{_bare(name)} is {tuple(given[name].shape)} {given[name].dtype}, the model's"
                f" {tuple(tensor.shape)} {tensor.dtype}"
            )
    return found


def _bare(name: str) -> str:
    """As the model calls it."""
    return name.removeprefix(MODEL)


def _load_optimizer(
    replica: Replica, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(OPTIMIZER):
            index, _, key = name.removeprefix(OPTIMIZER).partition(".")
            state.setdefault(int(index), {})[key] = tensor
    for name, value in about["optimizer_scalars"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    mine = replica.optimizer.state_dict()["param_groups"]
    saved = about["optimizer_groups"]
    check_groups(mine, saved, ours=_NOT_STATE)
    fused = {number for group in mine if group.get("fused") for number in group["params"]}
    check_entries(_in_order(replica), state, exact=fused)
    groups = []
    for own, group in zip(mine, saved, strict=True):
        restored = {k: tuple(v) if isinstance(own[k], tuple) else v for k, v in group.items()}
        groups.append({**restored, **{key: own[key] for key in _NOT_STATE if key in own}})
    replica.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _in_order(replica: Replica) -> list[tuple[str, Tensor]]:
    """Trained parameters with their names, in the order in which the optimizer numbers them."""
    names = {id(parameter): name for name, parameter in replica.trained}
    groups = replica.optimizer.param_groups
    parameters = [parameter for group in groups for parameter in group["params"]]
    return [
        (names.get(id(parameter), f"parameter {number}"), parameter)
        for number, parameter in enumerate(parameters)
    ]


def _plain(what: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(what, item) for item in value]
    raise TaskError(
        f"the optimizer keeps {what} as a {type(value).__name__}, which states cannot hold",
        remedy="let the optimizer keep tensors, numbers and text only",
    )
