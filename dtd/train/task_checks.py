"""Checks of a user's task before training begins; an error names what a job cannot train with.

    check_tensors          a state can hold the model's tensors and write them in place
    check_memory           trained parameters share no memory, where the state is divided
    SingleRow              the fewest rows that the model can train on at once
    check_gradient_hooks   hooks on gradients are linear: a step's gradient is a sum of parts
    try_evaluation         metrics are well formed, and those that the job names are among them

Some need a pass over a few rows (`Rehearsal`).  Where parameters are gathered while the model runs,
they must be asked for before that; with `strategy.stage = 3` all ranks gather in the order of the
first pass, and further passes show whether the order depends on rows or on chance.

A step's gradient is a sum over micro-batches and workers, each of which contributes that of its own
rows, divided by the rows of the whole batch.  A hook on a parameter sees these parts, so the sum is
what plain torch has only if the hook is linear, such as a mask or a factor; clipping is not.  Hooks
on activations see what plain torch shows them, since the rows' gradients are already divided.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dtd.checkpoint.format import Progress
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.rules import did_you_mean
from dtd.strategy.buckets import cleared
from dtd.strategy.sharded.uses import Region, overlap
from dtd.train.data.rows import NO_STEP, draw_key, kept_random_state, seed_generators
from dtd.train.evaluation import NOTHING_SEEN, Evaluator, judge
from dtd.train.model_setup import Sample, autocast
from dtd.train.optimizer import hook_tables
from dtd.train.plan import JobPlan
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import DTYPES
from dtd.train.state.weights import extra_states, named_state_buffers
from dtd.train.task import Task
from dtd.train.watch import ParameterWatch, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The passes of one job.

    Attributes:
        task: has the loss.
        replica: its model and optimizers.
        buffers: the model's.
        spec: the job.
        device: the model's.
    """

    task: Task
    replica: Replica
    buffers: RunningBuffers
    spec: JobSpec
    device: torch.device

    @property
    def can_run(self) -> bool:
        """Whether there are any: a loop of its own runs forward for its own batches only."""
        return getattr(self.task, "can_rehearse", True)

    def run(self, sample: Sample, structure: Structure, *, backward: bool, number: int = 0) -> None:
        """Compute the loss of a sample, or each optimizer's, and, if wanted, its gradients.

        Args:
            sample: gives the rows.
            structure: the model before this; listing its parameters here would gather them.
            backward: whether gradients are wanted.
            number: of the pass, which keys its random draws.

        Raises:
            TaskError: the loss changes the model's structure.
            Exception: whatever the task raises.
        """
        if not self.can_run:
            return
        task: Any = self.task
        replica, key = self.replica, draw_key(self.spec.job.seed, NO_STEP, number)
        batch = sample()
        self.buffers.take_snapshot()
        try:
            with kept_random_state(), replica.own.unchanged("loss()"), replica.recomputation:
                for update in replica.update_names:
                    seed_generators(key, self.device)
                    with autocast(self.spec.train.precision, self.device):
                        returned = task.loss(replica.model, batch, *filter(None, [update]))
                    structure.check("loss()")
                    loss: Any = returned[0] if isinstance(returned, tuple) else returned
                    if backward:
                        (loss * replica.scaler.scale).backward()
        finally:
            self.buffers.restore()


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


_ONE_VALUE: Final = "Expected more than 1 value per channel when training"
"""Beginning of what torch raises."""


def smallest_rows(model: nn.Module) -> int:
    """Return the fewest rows as far as classes of layers tell: those of BatchNorm1d are vectors."""
    found = (isinstance(layer, nn.BatchNorm1d) for layer in model.modules() if _estimates(layer))
    return 2 if any(found) else 1


class SingleRow:
    """Finds out, once and only if a plan has single rows, whether the model can train on one.

    Args:
        model: the task's.
        forward: a training forward over one row, after which everything is as before.
    """

    def __init__(self, model: nn.Module, forward: Callable[[], None]) -> None:
        self._forward = forward
        self._unknown = any(map(_estimates, model.modules()))
        self._rows = 1

    def fit(self, plan: JobPlan, world_size: int) -> JobPlan:
        """Return the plan with as many rows in every slice of so many ranks as the model needs.

        Ranks may find out in different generations: where no slice has a single row, slices are
        the same with either number.

        Raises:
            TaskError: a single rank has too few rows.
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


_FACTORS: Final = (-1.0, 2.0**-2, 2.0**10, 2.0**-10)
"""Powers of two, by which no element is rounded in another way."""
_TOLERANCE: Final = 1e-2
"""Relative to the largest element: a hook may compute in bfloat16."""
_SEED: Final = 0
"""Seed of the draws of a hook, the same in each call."""

_REMEDY: Final = (
    "use train.clip_norm, or change the gradient in a hook of the optimizer's step"
    " (register_step_pre_hook in build_optimizer), which sees the sum; or train with"
    " elastic.max_workers = 1 and train.grad_accumulation = 1"
)


@dataclass(frozen=True, slots=True)
class _Hook:
    """One hook of one trained parameter.

    Attributes:
        name: name of the parameter.
        parameter: the parameter.
        table: where torch keeps the hook, by `key`.
    """

    name: str
    parameter: nn.Parameter
    table: dict[int, Any]
    key: int

    @property
    def label(self) -> str:
        """The hook's name and place in the code."""
        hook = inspect.unwrap(self.table[self.key])
        while isinstance(hook, partial):
            hook = hook.func
        code = getattr(hook, "__code__", None)
        place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
        return f"{getattr(hook, '__qualname__', type(hook).__name__)}{place}"

    def result(self, gradient: Tensor) -> Tensor | None:
        """Return the hook's result for a gradient; None if it clears it.

        Raises:
            TaskError: it changes the parameter.  Whatever else it raises passes through.
        """
        parameter, kept = self.parameter, self.parameter.detach().clone()
        seed_generators(_SEED, parameter.device)
        try:
            with _without_hooks([parameter], but=self):
                parameter.backward(gradient.clone())  # type: ignore[no-untyped-call]
            result = parameter.grad
        finally:
            parameter.grad = None
            changed = not ((parameter == kept) | kept.isnan()).all()
            if changed:
                parameter.data.copy_(kept)
        if changed:
            raise TaskError(
                f"the hook {self.label} changes the parameter {self.name} during backward, by a"
                " gradient of this worker's rows alone",
                remedy="leave updates to the optimizer that build_optimizer() returns",
            )
        return result


def check_gradient_hooks(
    trained: Sequence[tuple[str, nn.Parameter]], rehearse: Callable[[], None], *, alone: bool
) -> list[str]:
    """Try the hooks on the gradients of trained parameters, before dtd adds its own.

    Args:
        trained: names and parameters.
        rehearse: runs forward and backward over a few rows.
        alone: there is one worker, and one micro-batch: hooks see the whole gradient.

    Returns:
        doubts about hooks, as sentences.

    Raises:
        TaskError: a hook clears gradients, changes its parameter, or is not linear.
    """
    hooked = [(name, one) for name, one in trained if hook_tables(one)]
    if not hooked:
        return []
    doubts = []
    for (name, parameter), gradient in zip(hooked, _gradients(trained, rehearse), strict=True):
        hooks = [_Hook(name, parameter, t, key) for t in hook_tables(parameter) for key in list(t)]
        for hook in hooks:
            with kept_random_state():
                doubts.append(_try(hook, gradient, alone=alone))
    return [doubt for doubt in doubts if doubt]


def _try(hook: _Hook, gradient: Tensor, *, alone: bool) -> str:
    """Return a doubt, or nothing."""
    whole = _result(hook, gradient)
    if whole is None or alone:
        return ""
    again = _result(hook, gradient)
    if again is None or not _close(whole, again):
        return (
            f"the hook {hook.label} on the gradient of {hook.name} gives another result when it is"
            " called again: what it keeps belongs to one worker, is not saved and sees a part of"
            " the batch; what it draws should come from the generators of torch, numpy or random"
        )
    for factor in _FACTORS:
        scaled = _result(hook, gradient * factor)
        if scaled is not None and not _close(scaled, whole.double() * factor):
            raise _not_linear(hook)
    for mask in _masks(gradient):
        one, other = (_result(hook, gradient * part) for part in (mask, 1 - mask))
        both = None if one is None or other is None else one.double() + other.double()
        if both is not None and not _close(both, whole):
            raise _not_linear(hook)
    return ""


def _result(hook: _Hook, gradient: Tensor) -> Tensor | None:
    """Return the hook's result; None if it returns nothing.

    A hook may refuse what it has not expected, so its exceptions are left to the training.
    """
    try:
        result = hook.result(gradient)
    except TaskError:
        raise
    except Exception:  # noqa: BLE001 - of the task
        return None
    if result is None:
        error = cleared(hook.name)
        raise TaskError(f"{error.message}, by the hook {hook.label}", remedy=error.remedy)
    result = result.to_dense() if result.layout is not torch.strided else result
    finite = bool(torch.isfinite(gradient).all() and torch.isfinite(result).all())
    return result if finite and result.shape == gradient.shape else None


def _not_linear(hook: _Hook) -> TaskError:
    return TaskError(
        f"the hook {hook.label} on the gradient of {hook.name} is not linear: it sees the parts of"
        " a step's gradient, one for each worker and micro-batch, and the sum of its results is not"
        " its result for the sum",
        remedy=_REMEDY,
    )


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether no element differs by more than a fraction of the largest one."""
    if not one.numel():
        return True
    largest = max(float(one.abs().max()), float(other.abs().max()))
    return float((one.double() - other.double()).abs().max()) <= _TOLERANCE * largest


def _masks(gradient: Tensor) -> Iterator[Tensor]:
    """Two ways to take a gradient apart: by neighbours, and into halves."""
    place = torch.arange(gradient.numel(), device=gradient.device).view(gradient.shape)
    for mask in (place % 2, place * 2 < gradient.numel()):
        yield mask.to(gradient.dtype)


def _gradients(
    trained: Sequence[tuple[str, nn.Parameter]], rehearse: Callable[[], None]
) -> list[Tensor]:
    """Return a gradient for each parameter that has hooks: of a few rows, if they give one.

    Where they do not, as for a layer that begins with zeros, numbers from -1 to 1 serve.
    """
    parameters = [parameter for _, parameter in trained]
    hooked = [parameter for parameter in parameters if hook_tables(parameter)]
    try:
        # A loss over so few rows may fail where that of a batch does not: training will tell.
        with _without_hooks(parameters), contextlib.suppress(Exception):
            rehearse()
        return [_usable(parameter) for parameter in hooked]
    finally:
        for parameter in parameters:
            parameter.grad = None


def _usable(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    if gradient is not None and gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient is not None and gradient.any() and torch.isfinite(gradient).all():
        return gradient.detach()
    steps = torch.linspace(-1.0, 1.0, parameter.numel(), device=parameter.device)
    return steps.to(parameter.dtype).view(parameter.shape)


@contextlib.contextmanager
def _without_hooks(parameters: Sequence[nn.Parameter], but: _Hook | None = None) -> Iterator[None]:
    """Take hooks on gradients away, and put back what was there, even what removed itself."""
    saved = [(table, dict(table)) for one in parameters for table in hook_tables(one)]
    for table, _ in saved:
        table.clear()
    try:
        if but is not None:
            but.table[but.key] = next(hooks[but.key] for t, hooks in saved if t is but.table)
        yield
    finally:
        for table, hooks in saved:
            table.clear()
            table.update(hooks)


def try_evaluation(
    evaluator: Evaluator | None,
    replica: Replica,
    buffers: RunningBuffers,
    watch: ParameterWatch,
    spec: JobSpec,
    progress: Progress,
) -> None:
    """Evaluate `train.sanity_batches` batches, and discard the figures.

    An error in the evaluation would otherwise fail the job at its end.  Random generators, running
    buffers and the task's own state are restored.

    Raises:
        TaskError: metrics are malformed, or one that the job names is missing.  Other exceptions
            of the task pass through.
    """
    best, batches = spec.checkpoint.best_metric, spec.train.sanity_batches
    if evaluator is None:
        if best:
            raise TaskError(
                f"checkpoint.best_metric is {best!r}, and the task has no eval_dataset()",
                remedy="give it one, or leave best_metric out",
            )
        return
    if not batches:
        return
    buffers.take_snapshot()
    try:
        with kept_random_state(), replica.own.unchanged("the evaluation"):
            found = evaluator.evaluate_some(replica.model, batches=batches, progress=progress)
        watch.check_structure("the evaluation")
    except TaskError as error:
        raise TaskError(
            f"{error.message} (found by evaluating {batches} batches before training)",
            remedy=error.remedy,
        ) from error
    finally:
        buffers.restore()
    _check_best(best, found)
    judge(spec.train, NOTHING_SEEN, found)


def _check_best(best: str, found: Iterable[str]) -> None:
    if best and best not in found:
        raise TaskError(
            f"checkpoint.best_metric is {best!r}, and the evaluation has"
            f" {', '.join(sorted(found))}{did_you_mean(best, found)}",
            remedy="name one of these, or return it from metrics(model, batch)",
        )
