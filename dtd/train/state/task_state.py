"""A task's own state as part of the training state: `state_dict()` and `load_state_dict()`.

Tensors and JSON values by name.  It goes into digests, checkpoints and to joining workers with the
rest (`dtd.train.state.tensors`).  It may change in `on_step` and `on_evaluation`, which happen
alike on every worker; not where workers see different rows.  What a step that is redone had changed
is taken back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import xxhash
from torch import Tensor

from dtd.errors import TaskError
from dtd.strategy.wire_memory import tensor_bytes

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
