"""Checks of a user's model: what a job cannot train with is refused before it begins.

    check_built      as build_model() returned it: no layer needs a process group, all has values
    check_tensors    a state can hold its tensors and write them in place
    check_memory     trained parameters share no memory, where the state is divided
    SingleRow        the fewest rows that it can train on at once

Further checks need what else a job has: `dtd.train.task` (methods and datasets),
`dtd.train.evaluation` (metrics that are named), `dtd.train.memory.calculated` (room for the state),
`dtd.train.optim.gradient_hooks`, `dtd.train.warm_up.rehearsal` (a first evaluation; a state that
can be divided), and, in every step, `dtd.train.warm_up.watch`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from dtd.errors import TaskError
from dtd.strategy.sharded.uses import Region, overlap
from dtd.train.plan import JobPlan
from dtd.train.state.weights import DTYPES, extra_states, named_state_buffers


def check_built(model: nn.Module) -> None:
    """Refuse a model with layers that talk to other ranks, or without values."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise TaskError(
                f"{f'the layer {name}' if name else 'the model'} is a SyncBatchNorm, and it would"
                " see only its own worker's rows: there is no process group",
                remedy="use BatchNorm, whose running statistics dtd averages over all workers, or"
                " GroupNorm, which needs no other rows",
            )
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if tensor.is_meta and not is_lazy(tensor):
                raise TaskError(
                    f"the {kind} {name} has no values: it is on the meta device",
                    remedy="build the model on the CPU, or give it values with"
                    " to_empty(device='cpu') and an initialisation",
                )


def check_tensors(model: nn.Module) -> None:
    """Refuse parameters, persistent buffers and extra state that no state can hold."""
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


_ONE_VALUE: Final = "Expected more than 1 value per channel when training"
"""Beginning of what torch raises."""


def smallest_rows(model: nn.Module) -> int:
    """Return the fewest rows as far as classes of layers tell: those of BatchNorm1d are vectors."""
    found = (isinstance(layer, nn.BatchNorm1d) for layer in model.modules() if _estimates(layer))
    return 2 if any(found) else 1


class SingleRow:
    """Finds out, once and only if a plan has single rows, whether the model can train on one."""

    def __init__(self, model: nn.Module, forward: Callable[[], None]) -> None:
        self._forward = forward
        self._unknown = any(map(_estimates, model.modules()))
        self._rows = 1

    def fit(self, plan: JobPlan, world_size: int) -> JobPlan:
        """Return the plan with as many rows in every slice of so many ranks as the model needs.

        Ranks may find out in different generations: where no slice has a single row, slices are
        the same with either number.
        """
        avoids_them = plan.smallest_rows > 1  # except where there is only one rank to have rows
        if not plan.has_single_rows(1 if avoids_them else world_size):
            return plan
        if self._unknown:
            self._unknown, self._rows = False, self._tried(plan.smallest_rows)
        fitted = replace(plan, smallest_rows=self._rows)
        fitted.check_slices()
        return fitted

    def _tried(self, otherwise: int) -> int:
        try:
            with _eager():
                self._forward()
        except ValueError as error:
            return 2 if str(error).startswith(_ONE_VALUE) else otherwise
        except Exception:  # noqa: BLE001 - a loss may need several rows for reasons of its own
            return otherwise
        return 1


def _estimates(layer: nn.Module) -> bool:
    """Whether a layer computes the variance of the rows that it is given in training."""
    return isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Compile nothing for a shape that may never come, and do not load the compiler for it."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
