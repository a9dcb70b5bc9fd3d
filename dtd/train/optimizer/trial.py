"""A few updates by a copy of a task's own optimizer, to see its state before training begins.

An optimizer makes its state in its first steps, and torch's own ones keep what a state can hold.
Others are copied with the smallest parameters of each group, without hooks, so that a trial costs
no memory and changes nothing.  What cannot be copied, or fails, is left to the training.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import OrderedDict, defaultdict
from typing import Any, Final

import torch
from torch import nn

from dtd.strategy.nested import leaves
from dtd.strategy.sharded.slices import flattened
from dtd.train.data.rows import kept_random_state
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import dtype_name, metadata, named_tensors

_UPDATES: Final = 10
_KNOWN: Final = ("torch.optim", "dtd.")


def check_kept(replica: Replica, *, sharded: bool) -> None:
    """Refuse an optimizer whose state cannot be stored.

    Args:
        replica: a fresh state; its optimizer has whole parameters.
        sharded: the optimizer's state will be divided.

    Raises:
        TaskError: with the name of the entry.
    """
    metadata(replica)
    for part in getattr(replica.optimizer, "parts", {"": replica.optimizer}).values():
        twin = None if type(part).__module__.startswith(_KNOWN) else _after_updates(part)
        if twin is None:
            continue
        later = dataclasses.replace(replica, optimizer=twin, schedule=None)
        metadata(later)
        for name, tensor in named_tensors(later).items():
            dtype_name(name, tensor.dtype)
        for parameter, values in twin.state.items() if sharded else ():
            for key, value in values.items():
                flattened(key, value, parameter)


def _after_updates(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return a copy that has made a few updates; None if that cannot be had."""
    try:
        twin = _copied(optimizer)
        if twin is None:
            return None
        with kept_random_state():
            for _ in range(_UPDATES):
                for parameter in (one for group in twin.param_groups for one in group["params"]):
                    parameter.grad = torch.randn_like(parameter)
                type(twin).step(twin)  # a schedule has put another step() into the original
    except Exception:  # noqa: BLE001 - of the task, or because it cannot be copied
        return None
    return twin


def _copied(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Return a copy over copies of a few parameters."""
    kept = {name: value for name, value in vars(optimizer).items() if name != "step"}
    if any(inspect.isfunction(one) and one.__closure__ for one in leaves(kept)):
        return None  # what it holds is not copied
    groups = [{**group, "params": _smallest(group["params"])} for group in optimizer.param_groups]
    chosen = {id(one) for group in groups for one in group["params"]}
    memo: dict[int, Any] = {}
    for one in (one for group in optimizer.param_groups for one in group["params"]):
        memo[id(one)] = nn.Parameter(
            one.detach().clone() if id(one) in chosen else one.new_empty(0)
        )
    state = {key: value for key, value in optimizer.state.items() if id(key) in chosen}
    kept |= {name: OrderedDict() for name in kept if name.endswith("_hooks")}
    kept |= {"param_groups": groups, "state": defaultdict(dict, state)}
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    vars(twin).update(copy.deepcopy(kept, memo))
    return twin


def _smallest(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    """Return the smallest parameter of each number of dimensions."""
    found: dict[int, nn.Parameter] = {}
    for one in sorted(parameters, key=lambda parameter: -parameter.numel()):
        if one.requires_grad and one.numel():
            found[one.dim()] = one
    return list(found.values())
