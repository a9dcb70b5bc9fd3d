"""Finds out which parts of a checkpoint go together, if some contradict each other.  Pure.

Nobody can tell from two parts that differ which of them is right, but one of them may be left out:
others have what it has, as the state has mirrors.  So one of the two is left out, the less trusted
one first, then the other one, then both or one more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

from dtd.errors import CheckpointError, PartsDiffer

Result = TypeVar("Result")

MOST_TRIES: Final = 8
"""Most merges that are tried: each reads all parts."""


def settled(
    merge: Callable[[frozenset[str]], Result], distrust: Callable[[str], Any]
) -> tuple[Result, frozenset[str]]:
    """Merge parts, without some of them if need be.

    Args:
        merge: merges parts, none of them of the workers that it is given.
        distrust: how little a worker's part is trusted, as a key to sort by.

    Returns:
        the merged result, and the workers whose parts were left out.

    Raises:
        PartsDiffer: nothing can be merged however they are chosen; tells of the first two.
        CheckpointError: it cannot be merged for another reason.
    """
    left = deque([frozenset[str]()])
    known = {frozenset[str]()}
    first: PartsDiffer | None = None
    while left:
        without = left.popleft()
        try:
            return merge(without), without
        except PartsDiffer as error:
            first = first or error
            for name in sorted(error.holders, key=distrust, reverse=True):
                more = without | {name}
                if more not in known and len(known) < MOST_TRIES:
                    known.add(more)
                    left.append(more)
        except CheckpointError:
            if first is None:
                raise
    assert first is not None, "nothing was tried"
    raise first
