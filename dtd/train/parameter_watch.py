"""Finds out that a task changes parameters where dtd does not look: in its `loss`.

What is trained changes in the optimizer's step, from sums that are the same on every worker.  A
change in `loss`, by its own rows, makes replicas differ, and a step that is redone makes it twice.
torch counts changes in place; the first passes also compare contents, for what goes past that
count through `.data`.  Nothing is repaired here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import xxhash
from torch import nn

from dtd.errors import TaskError
from dtd.train.bulk import add_to_hash
from dtd.train.record import GotOn, nobody
from dtd.train.weights import plain_name

PASSES_READ: Final = 2
_NAMED: Final = 3


class ParameterWatch:
    """Watches one model, frozen parameters included.

    Args:
        model: its parameters must exist now.
        got_on: called while contents are read.
    """

    def __init__(self, model: nn.Module, got_on: GotOn = nobody) -> None:
        self._got_on = got_on
        named = list(model.named_parameters())
        self._names = [plain_name(name) for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._passes = 0

    @contextlib.contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """See that parameters stay as they are.

        Raises:
            TaskError: they do not.
        """
        reads = self._passes < PASSES_READ
        self._passes += 1
        before = self._marks(reads=reads)
        yield
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
            " all workers; nn.Embedding(max_norm) cannot be used",
        )

    def _marks(self, *, reads: bool) -> list[int]:
        """Counts of changes, then hashes of contents if they are read; once a micro-batch."""
        counts = [parameter._version for parameter in self._parameters]  # noqa: SLF001
        return counts + [self._hash(p) for p in self._parameters] if reads else counts

    def _hash(self, parameter: nn.Parameter) -> int:
        content = xxhash.xxh3_64()
        add_to_hash(content, parameter, self._got_on)
        return content.intdigest()
