"""Finds out that a task changes the model where it must not.

What is trained changes in the optimizer's step, from sums that are the same on every worker.  A
change of a parameter in `loss`, by its own rows, makes replicas differ, and a step that is redone
makes it twice (`ParameterWatch`).

Gradients are collected, and states made, of the parameters and persistent buffers that the model
had when training began.  What is added, put in another's place or unfrozen later would not be
trained, or be missing in checkpoints; a worker that joins builds a model without it and cannot load
the state.  Where the state is divided, a parameter also has to stay in the memory that it was
given.  Extra state (`get_extra_state()`) differs by rank if the forward pass changes it, and
nothing can make it equal again (`Structure`).  Nothing is repaired here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
import xxhash
from torch import Tensor, nn

from dtd.checkpoint.format import Progress, no_progress
from dtd.errors import CodeError, TaskError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.text.shown import listed
from dtd.train.state.weights import add_to_hash, has_extra_state, persistent_buffers, plain_name


class Structure:
    """The modules, parameters, persistent buffers and extra states of one model."""

    def __init__(self, model: nn.Module, *, stay: bool) -> None:
        self._modules = [
            (
                plain_name(name),
                module,
                _copied(_own(module)),
                dict(module._modules),  # noqa: SLF001 - one list for each call
                _buffers(module),
            )
            for name, module in model.named_modules()
            if not isinstance(module, torch.jit.ScriptModule)
        ]
        self._extra = [
            (plain_name(name), module, _extra_state(module))
            for name, module in model.named_modules()
            if has_extra_state(module)
        ]
        named = [(plain_name(name), one) for name, one in model.named_parameters()]
        self._frozen = [(name, one) for name, one in named if not one.requires_grad]
        self._places = [(name, one, _place(one)) for name, one in named if one.requires_grad]
        self._stay = stay

    def check(self, by: str) -> None:
        """Check that the model's structure is unchanged."""
        found = self._change()
        if found:
            raise CodeError(
                f"the model has changed since training began, in {by} or in a callback: {found}",
                remedy="return the model from build_model() with all parameters and buffers that it"
                " will have, in their final shapes (register_buffer(persistent=False) is for what"
                " can be computed again); change values only in hooks of the optimizer's step, and"
                " train other parameters in another job (--weights-from)",
            )
        for name, module, value in self._extra:
            if _extra_state(module) != value:
                raise CodeError(
                    f"the extra state of {f'the module {name}' if name else 'the model'}"
                    f" (get_extra_state()) changes in {by} or in a callback, and ranks"
                    " would differ",
                    remedy="keep it in a buffer, which dtd averages over all workers",
                )

    def _change(self) -> str:
        for name, module, parameters, children, buffers in self._modules:
            prefix = f"{name}." if name else ""
            for kind, before, now in (
                ("parameter", parameters, _own(module)),
                ("module", children, module._modules),  # noqa: SLF001 - one list for each call
            ):
                key = _first_difference(before, now)
                if key is not None:
                    return f"the {kind} {prefix}{key} {_how(key, before, now)}"
            if _buffers(module) != buffers:
                return f"the buffer {prefix}{_changed_buffer(buffers, _buffers(module))}"
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                return f"the parameter {name} requires a gradient and did not"
        for name, parameter, place in self._places if self._stay else ():
            if _place(parameter) != place:
                return f"the parameter {name} has other memory (.data was assigned, or .to() used)"
        return ""


def _own(module: nn.Module) -> dict[str, Any]:
    """Return a module's parameters as they are, whether they are in memory or not."""
    own: dict[str, Any] = module._parameters  # noqa: SLF001 - named_parameters() gathers them
    return own


def _copied(own: dict[str, Any]) -> dict[str, Any]:
    return dict(dict.items(own))


def _first_difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    for key, one in before.items():
        if dict.get(now, key) is not one:
            return key
    return None if len(now) == len(before) else next(key for key in now if key not in before)


def _how(key: str, before: dict[str, Any], now: dict[str, Any]) -> str:
    if dict.get(now, key) is None:
        return "is gone"
    return "was not there" if before.get(key) is None else "is another one"


def _buffers(module: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (one.shape, one.dtype) for name, one in persistent_buffers(module).items()}


def _changed_buffer(before: dict[str, Any], now: dict[str, Any]) -> str:
    key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
    if key not in now:
        return f"{key} is gone"
    if key not in before:
        return f"{key} was not there"
    (old, old_type), (new, new_type) = before[key], now[key]
    return f"{key} is {tuple(new)} {new_type} and was {tuple(old)} {old_type}"


def _extra_state(module: nn.Module) -> tuple[torch.dtype, torch.Size, bytes]:
    value: Tensor = module.get_extra_state()  # no other kind gets past the check of the model
    return value.dtype, value.shape, bytes(tensor_bytes(value.detach().cpu().contiguous()))


def _place(parameter: nn.Parameter) -> tuple[int, int]:
    storage = parameter.untyped_storage()  # it may have no memory now
    return storage._cdata, int(parameter.storage_offset())  # noqa: SLF001 - torch has no other name


PASSES_READ: Final = 2
_NAMED: Final = 3


class ParameterWatch:
    """Watches one model, frozen parameters included.

    torch counts changes in place; the first passes also compare contents, for what goes past that
    count through `.data`.

    It also refuses gradients that come from a `backward()` inside a method of the task: they are
    of this worker's rows alone, and not yet divided by the rows of the global batch.
    """

    def __init__(
        self,
        model: nn.Module,
        progress: Progress = no_progress,
        *,
        reads: bool = True,
        stay: bool = False,
    ) -> None:
        self.structure = Structure(model, stay=stay)
        self._progress = progress
        self._may_read = reads
        named = list(model.named_parameters())
        self._names = [plain_name(name) for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._passes = 0
        self._by = ""
        for parameter in self._parameters:
            if parameter.requires_grad:
                register: Any = parameter.register_post_accumulate_grad_hook
                register(self._refuse_gradient)

    @property
    def reads(self) -> bool:
        """Whether the next pass also compares contents."""
        return self._may_read and self._passes < PASSES_READ

    @contextlib.contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """Check that parameters keep their values, and that no others take their place.

        Raises:
            TaskError: they do not, or the method computes gradients of them itself.
        """
        reads = self.reads
        self._passes += 1
        before = self._marks(reads=reads)
        self._by = by
        try:
            yield
        except TaskError:
            self.structure.check(by)  # this may be why
            raise
        finally:
            self._by = ""
        self.structure.check(by)
        after = self._marks(reads=reads)
        if before == after:
            return
        pairs = zip(self._names * 2, before, after, strict=False)
        changed = list(dict.fromkeys(name for name, old, new in pairs if old != new))
        raise CodeError(
            f"{by} of the task changes parameters itself: {listed(changed, _NAMED)}",
            remedy="leave that to the optimizer (or to several of them); clip or renormalise"
            " weights in a hook of its step (register_step_post_hook), which runs alike on"
            ' all workers (strategy.name = "sharded" takes elementwise hooks only);'
            " nn.Embedding(max_norm) cannot be used",
        )

    def _refuse_gradient(self, parameter: Tensor) -> None:
        if self._by:
            name = next(
                n for n, p in zip(self._names, self._parameters, strict=True) if p is parameter
            )
            raise CodeError(
                f"{self._by} of the task calls backward() itself: {name} has received a gradient",
                remedy="add this loss to the one that is returned, or use torch.autograd.grad()"
                " where a gradient is needed within it; a second optimizer belongs into"
                " build_optimizers()",
            )

    def _marks(self, *, reads: bool) -> list[int]:
        """Counts of changes, then hashes of contents if they are read; once a micro-batch."""
        counts = [parameter._version for parameter in self._parameters]  # noqa: SLF001
        return counts + [self._hash(p) for p in self._parameters] if reads else counts

    def _hash(self, parameter: nn.Parameter) -> int:
        content = xxhash.xxh3_64()
        add_to_hash(content, parameter, self._progress)
        return content.intdigest()
