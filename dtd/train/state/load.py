"""Loading of a state into a replica, and its transfer between workers.

torch takes over what it is given, by number, and fails in the middle of a step, or with a bare key.
So everything is compared before it is loaded, and what differs is named with both values.

A state travels as one JSON text and the bytes of its tensors (`StateImage`).  The donor exports
views of live memory, nothing is copied on a CPU; the joiner allocates what the text announces, lets
the bytes be received into it and takes the state over when all are there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from dtd.checkpoint.format import Progress, canonical_json, no_progress
from dtd.checkpoint.tensor_file import checked_shape
from dtd.engine.sampler import Ledger
from dtd.engine.shards import NOTHING, WHOLE
from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.strategy.nested import decoded, mapped, tensor_names
from dtd.strategy.wire_memory import tensor_bytes
from dtd.text.shown import listed, shown
from dtd.train.evaluation import EarlyStop
from dtd.train.record import StateImage
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    AVERAGE,
    MODEL,
    NOT_STATE,
    OPTIMIZER,
    PARAMETERS,
    REPLICATED,
    SHARDS,
    STRATEGY,
    TASK,
    WHOLE_STRATEGIES,
    common_tensors,
    digest_of,
    dtype_name,
    metadata,
    named_tensors,
    on_host,
)
from dtd.train.state.weights import DTYPES, copy_into, differs_from_fixed, model_tensors, plain_name

REMEDY: Final = "use the optimizer that made it, or take over its weights only (--weights-from)"
_SCALARS: Final = ("step",)
"""Entries that have no dimension whatever the parameter has."""
_MOST_NAMED: Final = 4

Groups = Sequence[Mapping[str, Any]]
Names = Sequence[Sequence[str]]
"""Names of the parameters of each group, in the optimizer's order."""


def check_groups(own: Groups, saved: Groups, *, ours: Sequence[str]) -> None:
    """Compare the settings of parameter groups.

    Raises:
        CheckpointError: another number of groups, or settings that only one of the two has.
    """
    if len(own) != len(saved):
        raise CheckpointError(
            f"the state's optimizer has {len(saved)} parameter groups, this job's {len(own)}",
            remedy=REMEDY,
        )
    for number, (mine, theirs) in enumerate(zip(own, saved, strict=True)):
        known = {key: value for key, value in mine.items() if key not in ours}
        lacks = [f"{key} = {_words(known[key])}" for key in known if key not in theirs]
        extra = [
            f"{key} = {_words(theirs[key])}"
            for key in theirs
            if key not in mine and key not in ours
        ]
        if lacks or extra:
            where = f" in group {number}" if len(own) > 1 else ""
            raise CheckpointError(
                f"the state is of another optimizer{where}:{' it has ' if extra else ''}"
                f"{listed(extra, _MOST_NAMED)}{' and' if lacks and extra else ''}"
                f"{' it lacks ' if lacks else ''}{listed(lacks, _MOST_NAMED)}",
                remedy=REMEDY,
            )


def own_numbers(own: Names, saved: Names) -> list[int]:
    """Number in this job's optimizer of each parameter of the state's, in the state's order.

    Raises:
        CheckpointError: a parameter is in one of the two only, or in another group.
    """
    mine, theirs = (
        {name: number for number, names in enumerate(groups) for name in names}
        for groups in (own, saved)
    )
    found = [f"{name} is only in the state's" for name in theirs if name not in mine]
    found += [f"{name} is only in this job's" for name in mine if name not in theirs]
    found += [
        f"{name} is in group {group} of the state's and in group {mine[name]} of this job's"
        for name, group in theirs.items()
        if mine.get(name, group) != group
    ]
    if found:
        raise CheckpointError(
            f"the state's optimizer and this job's have other parameters:"
            f" {listed(found, _MOST_NAMED, '; ')}",
            remedy="train the same parameters in the same groups, or take over the state's weights"
            " only (--weights-from)",
        )
    number_of = {name: number for number, name in enumerate(chain.from_iterable(own))}
    return [number_of[name] for name in chain.from_iterable(saved)]


def check_entries(
    parameters: Sequence[tuple[str, Tensor]],
    state: Mapping[int, Mapping[str, Any]],
    *,
    exact: AbstractSet[int],
) -> None:
    """Compare the entries of parameters.

    Args:
        parameters: name and value of each that is trained, in the optimizer's order.
        state: entries by number of the parameter.
        exact: numbers of those that a fused kernel updates.  It takes state to be as long as its
            parameter, and writes beyond it if it is not; other optimizers may keep any shape.

    Raises:
        CheckpointError: one is of a parameter that is not there, or has not its parameter's shape.
    """
    for number, entries in sorted(state.items()):
        if number >= len(parameters):
            raise CheckpointError(
                f"the state's optimizer has {', '.join(sorted(entries))} of parameter {number},"
                f" and this job trains {len(parameters)}",
                remedy=REMEDY,
            )
        if number in exact:
            _check_shapes(*parameters[number], entries)


def _check_shapes(name: str, parameter: Tensor, entries: Mapping[str, Any]) -> None:
    for key, value in sorted(entries.items()):
        expected = torch.Size() if key in _SCALARS else parameter.shape
        if isinstance(value, Tensor) and value.shape != expected:
            raise CheckpointError(
                f"the state's optimizer has {key} of {name} as {tuple(value.shape)}, not"
                f" {tuple(expected)}",
                remedy=REMEDY,
            )


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return "none" if value is None else shown(value)


Value = TypeVar("Value")
_NUMBERED = re.compile(r"^(optimizer\.|)(\d+)\.")


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
    _load_weights(replica, tensors, progress, common=SHARDS in about)
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
    if known != replica.strategy and not {known, replica.strategy} <= {*WHOLE_STRATEGIES}:
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


def _load_weights(
    replica: Replica, tensors: Mapping[str, Tensor], progress: Progress, *, common: bool
) -> None:
    """Take over parameters and buffers, or those that are not sharded."""
    if replica.shards is not None and not common:
        replica.shards.allocate()
    model = common_tensors(replica) if common else model_tensors(replica.model)
    live = {MODEL + name: tensor for name, tensor in model.items()}
    given = {
        n if n in live else plain_name(n): t for n, t in tensors.items() if n.startswith(MODEL)
    }
    unfit = _unfit(live, given)
    if unfit:
        raise CheckpointError(
            f"the state is of another model: {listed(unfit, _MOST_NAMED, '; ')}",
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

    Raises:
        CheckpointError: the two optimizers have other parameters.
    """
    if PARAMETERS not in about:
        return dict(entries)
    numbers = own_numbers(replica.grouped, about[PARAMETERS])
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
    check_groups(mine, saved, ours=NOT_STATE)
    state: dict[int, dict[str, Any]] = {}
    for name, value in own_entries(replica, about, _saved_entries(tensors, about)).items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    fused = {number for group in mine if group.get("fused") for number in group["params"]}
    check_entries(_in_order(replica), state, exact=fused)
    groups = []
    for own, group in zip(mine, saved, strict=True):
        kept = {key: value for key, value in group.items() if key not in NOT_STATE}
        restored = {key: _like(own[key], value) for key, value in kept.items()}
        groups.append({**restored, **{key: own[key] for key in NOT_STATE if key in own}})
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


def export_image(
    replica: Replica, *, key: StateKey, progress: Progress = no_progress
) -> StateImage:
    """The live state; valid until the next step begins."""
    tensors = {name: on_host(tensor) for name, tensor in named_tensors(replica).items()}
    about = metadata(replica)
    listing = [[n, dtype_name(n, t.dtype), list(t.shape)] for n, t in tensors.items()]
    manifest = {
        "generation": key.generation,
        "state": about,
        "tensors": listing,
        "digest": digest_of(tensors, about, progress).hex(),
    }
    blobs = [tensor_bytes(tensor) for tensor in tensors.values()]
    widths = [tensor.element_size() for tensor in tensors.values()]
    return StateImage(manifest=canonical_json(manifest), blobs=blobs, item_bytes=widths)


class IncomingImage:
    """A state that is being received.

    Raises:
        CheckpointError: the text is not one, or announces too much.
    """

    def __init__(self, manifest: bytes, *, limit_bytes: int) -> None:
        try:
            self._manifest: dict[str, Any] = json.loads(manifest)
            generation, about = int(self._manifest["generation"]), self._manifest["state"]
            self.key = StateKey(generation, int(about["step"]))
            self._digest = str(self._manifest["digest"])
            announced = [
                (str(name), DTYPES[dtype], checked_shape(shape))
                for name, dtype, shape in self._manifest["tensors"]
            ]
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"the manifest of a received state is broken: {error}") from error
        total_bytes = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in announced)
        if total_bytes > limit_bytes:
            raise CheckpointError(
                f"a received state announces {total_bytes} bytes; this model needs at most"
                f" {limit_bytes}"
            )
        self._tensors: dict[str, Tensor] = {
            name: torch.empty(shape, dtype=dtype) for name, dtype, shape in announced
        }

    def blobs(self) -> list[memoryview]:
        """Memory to receive into, in the manifest's order."""
        return [tensor_bytes(tensor) for tensor in self._tensors.values()]

    def check(self, progress: Progress = no_progress) -> None:
        """Compare the received state with its digest."""
        digest = digest_of(self._tensors, self._manifest["state"], progress)
        if digest.hex() != self._digest:
            raise CheckpointError("a received state does not match its digest")

    def apply(self, replica: Replica, progress: Progress = no_progress) -> None:
        """Take the state over."""
        load_state(replica, self._tensors, self._manifest["state"], progress)
