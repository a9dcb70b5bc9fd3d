"""Checks of a model before training begins; an error names what a job cannot train with.

Every state has to hold the tensors of a model and to write them in place (`check_tensors`).  Where
the state is divided, trained parameters also move to memory of their own (`check_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.strategy.sharded.memory import Region, overlap
from dtd.train.state.tensors import DTYPES
from dtd.train.state.weights import extra_states, named_state_buffers


def check_tensors(model: nn.Module) -> None:
    """Refuse parameters, persistent buffers and extra state that no state can hold.

    Raises:
        TaskError: one of them is such.
    """
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", named_state_buffers(model)),
        ("extra state", extra_states(model)),
    ):
        for name, tensor in named:
            reason, remedy = _unfit(tensor)
            if reason:
                raise TaskError(f"the {kind} {name} {reason}", remedy=remedy)


def _unfit(tensor: Tensor) -> tuple[str, str]:
    """Return why a state cannot hold a tensor, and what to do; empty if it can."""
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}", "keep its values in a dense one (.to_dense())"
    if tensor.dtype not in DTYPES.values():
        return f"has element type {tensor.dtype}, which states cannot hold", _other_type(tensor)
    if tensor.is_inference():
        return "was made in inference mode, which autograd cannot use", "build it outside of that"
    if tensor.is_neg():
        return "is a lazily negated view", "keep .clone() of it"
    if may_overlap(tensor.shape, tensor.stride()):
        return "has elements that share memory, as after expand()", "keep .clone() of it"
    return "", ""


def _other_type(tensor: Tensor) -> str:
    if tensor.is_complex():
        return (
            "keep torch.view_as_real() of it, which is real, and use torch.view_as_complex() of"
            " that in forward()"
        )
    if tensor.is_floating_point():
        return "keep it as bfloat16 or wider, and convert it in forward()"
    return "keep it as int64, and convert it in forward()"


def may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a tensor may lie on one another.

    They do not if each dimension steps over all that the smaller ones reach, which holds for
    everything but expanded tensors and sliding windows.
    """
    if 0 in shape:
        return False
    reached = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True)):
        if size > 1:
            if stride <= reached:
                return True
            reached += stride * (size - 1)
    return False


# --- memory that two tensors share -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """A parameter or a buffer, and where it lies."""

    name: str
    kind: str
    trained: bool
    region: Region


def check_memory(model: nn.Module, trained: Sequence[nn.Parameter]) -> None:
    """Refuse a trained parameter that lies in the memory of another parameter, or of a buffer.

    Once the state is divided it would not follow that one any more.  The same parameter under two
    names is one parameter, and parts of one tensor that do not overlap are separate ones.

    Raises:
        TaskError: with the names of the two.
    """
    for one, other in _overlapping(_listed(model, {id(parameter) for parameter in trained})):
        if one.kind == other.kind == "parameter":
            how = "assign the same nn.Parameter to both names if they are to be tied, or"
        else:
            how = "compute the buffer from the parameter in forward(), or"
        raise TaskError(
            f'{one.name} and {other.name} share memory, and strategy.name = "sharded" gives each'
            f" trained parameter memory of its own, so the {other.kind} {other.name} would not"
            f" follow {one.name}",
            remedy=f"{how} .clone() one of them if they are not to follow each other; or use"
            ' strategy.name = "replicated"',
        )


def _listed(model: nn.Module, trained: set[int]) -> dict[int, list[_Named]]:
    """Return parameters and buffers by storage."""
    found: dict[int, list[_Named]] = {}
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if tensor.layout is torch.strided:
                region = Region.of(tensor)
                one = _Named(name=name, kind=kind, trained=id(tensor) in trained, region=region)
                found.setdefault(region.storage, []).append(one)
    return found


def _overlapping(by_storage: dict[int, list[_Named]]) -> Iterator[tuple[_Named, _Named]]:
    """Yield pairs that share memory, a trained parameter first."""
    for sharing in by_storage.values():
        reaching: list[_Named] = []
        for one in sorted(sharing, key=lambda named: named.region.start):
            reaching = [other for other in reaching if other.region.stop > one.region.start]
            for other in reaching:
                if (one.trained or other.trained) and overlap(other.region, one.region):
                    yield (other, one) if other.trained else (one, other)
            reaching.append(one)
