"""A task's own state as part of the training state, and its undeclared changes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import xxhash
from torch import Tensor, nn

from dtd.checkpoint.format import Progress, no_progress
from dtd.errors import TaskError
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.bulk import add_to_hash
from dtd.train.state.structure import Structure
from dtd.train.state.weights import plain_name

# --- a task's own state: `state_dict()` and `load_state_dict()` ---------------------------------
#
# Tensors and JSON values by name.  It goes into digests, checkpoints and to joining workers with
# the rest (`dtd.train.state.tensors`).  It may change in `on_step` and `on_evaluation`, which
# happen alike on every worker; not where workers see different rows.  What a step that is redone
# had changed is taken back.


MAX_VALUES_BYTES: Final = 256 * 1024
MAX_TENSOR_BYTES: Final = 64 * 1024 * 1024


class OwnState:
    """The state of one task.

    Args:
        task: None, or one without the two methods, has none.

    Raises:
        TaskError: it has one of the methods without the other, or its state is not fit for one.
    """

    def __init__(self, task: Any = None) -> None:
        save, load = (getattr(task, name, None) for name in ("state_dict", "load_state_dict"))
        if (save is None) != (load is None):
            raise TaskError(
                "the task has one of state_dict() and load_state_dict(state) without the other",
                remedy="give it both, or none",
            )
        self._save, self._load = save, load
        self._fresh = self._copy()
        self._before: dict[str, Any] | None = None

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Live tensors and plain values, by name in order.

        Raises:
            TaskError: it holds anything else, or too much.
        """
        if self._save is None:
            return {}, {}
        state = self._save()
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise _unfit("is not a dictionary with names as keys")
        tensors = {k: v.detach() for k, v in sorted(state.items()) if isinstance(v, Tensor)}
        values = {k: v for k, v in sorted(state.items()) if not isinstance(v, Tensor)}
        if sum(tensor.nbytes for tensor in tensors.values()) > MAX_TENSOR_BYTES:
            raise _unfit(f"holds tensors of more than {MAX_TENSOR_BYTES >> 20} MiB")
        return tensors, json.loads(_json(values))

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Take a state over; the task may keep the tensors."""
        if self._load is not None:
            self._load({**tensors, **values})

    def reset(self) -> None:
        """Restore the state with which the task was made."""
        self._put(self._fresh)

    # --- a step ----------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: what changes from here on may have to be taken back."""
        self._before = self._copy()

    def keep(self) -> None:
        """The step is committed."""
        self._before = None

    def restore(self) -> None:
        """Nothing of the step happened, if one has begun."""
        if self._before is not None:
            before, self._before = self._before, None
            self._put(before)

    @contextlib.contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """Check that the task leaves its state unchanged.

        Raises:
            TaskError: it has changed.
        """
        before = self._fingerprint()
        yield
        if self._fingerprint() != before:
            raise TaskError(
                f"the task's own state changed in {by}, which does not run alike on every worker",
                remedy="change it in on_step() or on_evaluation(), or leave it out of state_dict()",
            )

    def _fingerprint(self) -> bytes:
        if self._save is None:
            return b""
        tensors, values = self.parts()
        content = xxhash.xxh3_128(_json(values))
        for name, tensor in tensors.items():
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor_bytes(tensor.cpu().contiguous()))
        return content.digest()

    def _copy(self) -> dict[str, Any]:
        tensors, values = self.parts()
        return {**{name: tensor.clone() for name, tensor in tensors.items()}, **values}

    def _put(self, state: Mapping[str, Any]) -> None:
        """Load a copy of a copy: the task may change its argument."""
        if self._load is not None:
            copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
            values = {k: v for k, v in copied.items() if not isinstance(v, Tensor)}
            self._load({**copied, **json.loads(_json(values))})


def _json(values: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(values, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise _unfit(f"holds what is neither a tensor nor a JSON value: {error}") from error
    if len(text) > MAX_VALUES_BYTES:
        raise _unfit(f"holds values of more than {MAX_VALUES_BYTES >> 10} KiB")
    return text


def _unfit(why: str) -> TaskError:
    return TaskError(
        f"what state_dict() of the task returned {why}",
        remedy="let it be a dictionary of tensors, numbers, text, lists and dictionaries",
    )


# --- finds out that a task changes parameters where dtd does not look: in its `loss` -----------
#
# What is trained changes in the optimizer's step, from sums that are the same on every worker.  A
# change in `loss`, by its own rows, makes replicas differ, and a step that is redone makes it
# twice. torch counts changes in place; the first passes also compare contents, for what goes past
# that count through `.data`.  Nothing is repaired here.


PASSES_READ: Final = 2
_NAMED: Final = 3


class ParameterWatch:
    """Watches one model, frozen parameters included.

    It also refuses gradients that come from a `backward()` inside a method of the task: they are
    of this worker's rows alone, and not yet divided by the rows of the global batch.

    Args:
        model: its parameters must exist now.
        progress: called while contents are read.
        reads: contents can be read; parameters have memory all the time.
        stay: trained parameters have to stay where they are in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        progress: Progress = no_progress,
        *,
        reads: bool = True,
        stay: bool = False,
    ) -> None:
        self._structure = Structure(model, stay=stay)
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

    def check_structure(self, by: str) -> None:
        """Check that the model has the parameters and buffers that it began with.

        Raises:
            TaskError: it has not.
        """
        self._structure.check(by)

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
            self._structure.check(by)  # this may be why
            raise
        finally:
            self._by = ""
        self._structure.check(by)
        after = self._marks(reads=reads)
        if before == after:
            return
        pairs = zip(self._names * 2, before, after, strict=False)
        changed = list(dict.fromkeys(name for name, old, new in pairs if old != new))
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        raise TaskError(
            f"{by} of the task changes parameters itself: {', '.join(changed[:_NAMED])}{more}",
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
            raise TaskError(
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
