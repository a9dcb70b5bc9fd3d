"""Hooks on the gradients of a user's model are linear, or they are refused.

A step's gradient is a sum over micro-batches and workers, each of which contributes that of its own
rows, divided by the rows of the whole batch.  A hook on a parameter sees these parts, so the sum is
what plain torch has only if the hook is linear, such as a mask or a factor; clipping is not.  Hooks
on activations see what plain torch shows them, since the rows' gradients are already divided.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from dtd.errors import TaskError
from dtd.strategy.buckets import cleared
from dtd.train.data.rows import kept_random_state, seed_generators

_HOOK_TABLES: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of a parameter in which torch keeps hooks on its gradient by key."""

HookKey = tuple[int, str, int]
"""Place of the parameter, torch's name of the table, and the hook's key there."""

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


def hooks_on(parameters: Sequence[nn.Parameter]) -> set[HookKey]:
    """Return the keys of all hooks on gradients."""
    return {
        (place, name, key)
        for place, parameter in enumerate(parameters)
        for name in _HOOK_TABLES
        for key in getattr(parameter, name) or ()
    }


def replace_hooks(parameters: Sequence[nn.Parameter], old: set[HookKey], new: set[HookKey]) -> None:
    """Remove old hooks, and call new ones where those were, before the hooks that follow."""
    for place, name in {(place, name) for place, name, _ in old | new}:
        table = getattr(parameters[place], name)
        hooks = dict(table)
        keys = [key for key in hooks if (place, name, key) not in new]
        places = [at for at, key in enumerate(keys) if (place, name, key) in old]
        at = places[0] if places else 0
        added = [key for key in hooks if (place, name, key) in new]
        table.clear()
        for key in [*keys[:at], *added, *keys[at:]]:
            if (place, name, key) not in old:
                table[key] = hooks[key]


def hook_tables(parameter: Any) -> list[dict[int, Any]]:
    """Return torch's tables of the hooks on a gradient, before and after it is accumulated."""
    tables = (getattr(parameter, name) for name in _HOOK_TABLES)
    return [table for table in tables if table]
