"""Shares: how many rows of a step each rank computes, in proportion to its speed.

All ranks of a step wait for the slowest.  With equal slices a machine at half speed therefore
halves everybody; with shares all ranks need the same time.  A rank's speed is told as its *cost*:
nanoseconds of its own work for a row, a median of its last steps.  Costs are gathered every few
steps, and every rank computes the same integers from the same words.

A rank's own time has a part that does not depend on rows (the optimizer, starting a kernel), so a
cost is higher where there are few rows.  Shares by such costs nevertheless approach those with
which all ranks need the same time t(n) = a + b n: a decision multiplies n by a constant / t(n),
which is stable, since a / t lies between 0 and 1.

Pure.  Which rows of the batch these are is decided in `dtd.train.plan`.
"""

from __future__ import annotations

import functools
import statistics
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from dtd.errors import ErrorCode, ProtocolError

DECIDE_EVERY_STEPS: Final = 8
"""Steps between two decisions; also how many of the last steps a cost is the median of."""

LEAST_MEASURED: Final = 3
"""Fewest measured steps that make a cost."""

UNKNOWN: Final = 0
"""The cost of a rank that has measured nothing yet."""

_WORTH_PERCENT: Final = 10
"""A change has to shorten a step by this much: rows that move are loaded anew, and times vary."""

_COST: Final = struct.Struct("!Q")
_MOST: Final = (1 << 63) - 1
_SCALE: Final = 10**24
_NS_PER_S: Final = 10**9


class Pace:
    """The cost of a row on this rank, from its last steps."""

    def __init__(self) -> None:
        self._costs: deque[int] = deque(maxlen=DECIDE_EVERY_STEPS)
        self._disturbed = True

    def disturbed(self) -> None:
        """Leave the next step out: its rows were not loaded ahead."""
        self._disturbed = True

    def restart(self) -> None:
        """Forget all steps: a row may cost more or less with another number of rows."""
        self._costs.clear()
        self._disturbed = True

    def add(self, own_s: float, *, rows: int, steps: int) -> None:
        """Add steps that were measured together.

        Args:
            own_s: time of this rank's own work in all of them; 0 if it was not measured.
            rows: its rows in all of them.
            steps: their number.
        """
        measured = not self._disturbed and rows > 0 and own_s > 0
        self._disturbed = False
        if measured:
            cost = max(1, min(_MOST, round(own_s * _NS_PER_S / rows)))
            self._costs.extend([cost] * min(steps, DECIDE_EVERY_STEPS))

    @property
    def cost(self) -> int:
        """Nanoseconds for a row; UNKNOWN after too few steps."""
        known = len(self._costs) >= LEAST_MEASURED
        return statistics.median_low(self._costs) if known else UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The costs by which rows are divided from now on.

    Attributes:
        costs: of each rank that trains; empty: rows are divided equally.
        reason: for people; empty if nothing changes.
    """

    costs: tuple[int, ...]
    reason: str


def decide(present: tuple[int, ...], told: Sequence[int], *, rows: int, least: int) -> Decision:
    """Decide whether rows are divided anew; a rank that has measured nothing counts as usual.

    Args:
        present: the costs by which they are divided now; empty: equally.
        told: of each rank that trains, in rank order.
        rows: of a step.
        least: fewest rows of a rank.
    """
    known = [cost for cost in told if cost != UNKNOWN]
    if not known:
        return Decision(costs=present, reason="")
    usual = statistics.median_low(known)
    costs = tuple(cost or usual for cost in told)
    was = divided(rows, present or (1,) * len(costs), least)
    now = divided(rows, costs, least)
    was_ns, now_ns = _longest(was, costs), _longest(now, costs)
    if 100 * now_ns > (100 - _WORTH_PERCENT) * was_ns:
        return Decision(costs=present, reason="")
    slow, fast = costs.index(max(costs)), costs.index(min(costs))
    saved = 100 * (was_ns - now_ns) / was_ns
    return Decision(
        costs=costs,
        reason=f"ranks 0 to {len(now) - 1} have {_listed(now)} of {rows} rows, not {_listed(was)}:"
        f" rank {slow} needs {costs[slow] / costs[fast]:.2f} times as long for a row as rank"
        f" {fast}, and a step gets {saved:.0f} % shorter",
    )


def _listed(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows))


def _longest(rows: Sequence[int], costs: Sequence[int]) -> int:
    return max(count * cost for count, cost in zip(rows, costs, strict=True))


def applies(rows: int, ranks: int, least: int) -> bool:
    """Whether there are enough rows to divide them by speed."""
    return rows >= ranks * least


@functools.lru_cache(maxsize=64)
def divided(rows: int, costs: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return the rows of each rank: integers that sum to `rows`, `least` or more.

    A rank of lower cost never has fewer rows than one of higher cost.  If there are too few rows
    for `least` each, they are divided equally.
    """
    ranks = len(costs)
    if not applies(rows, ranks, least):
        return tuple(rows * (rank + 1) // ranks - rows * rank // ranks for rank in range(ranks))
    speeds = {rank: _SCALE // cost for rank, cost in enumerate(costs)}
    counts = [least] * ranks
    free = rows
    while True:
        total = sum(speeds.values())
        slow = [rank for rank, speed in speeds.items() if free * speed // total < least]
        if not slow:
            break
        free -= least * len(slow)
        for rank in slow:
            del speeds[rank]
    for rank, speed in speeds.items():
        counts[rank] = free * speed // total
    for _ in range(rows - sum(counts)):
        first = min(speeds, key=lambda rank: ((counts[rank] + 1) * costs[rank], rank))
        counts[first] += 1
    return tuple(counts)


@functools.lru_cache(maxsize=64)
def starts(rows: int, costs: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Return where each rank's slice of `rows` begins, and at last where the last one ends."""
    return tuple(accumulate(divided(rows, costs, least), initial=0))


# --- weights from the job file --------------------------------------------------------------------


def costs_of(weights: Mapping[str, float], names: Sequence[str]) -> tuple[int, ...]:
    """Return the costs that stand for weights.

    Args:
        weights: by the name of a worker, or of the host with which its name begins; others have 1.
        names: of the workers that train, in rank order.
    """
    return tuple(max(1, round(_NS_PER_S / _weight(weights, name))) for name in names)


def unmatched(weights: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return the keys that stand for none of these workers."""
    return [key for key in weights if not any(_stands_for(key, name) for name in names)]


def _weight(weights: Mapping[str, float], name: str) -> float:
    matching = [key for key in weights if _stands_for(key, name)]
    return weights[max(matching, key=len)] if matching else 1.0


def _stands_for(key: str, name: str) -> bool:
    return name == key or name.startswith(f"{key}-")


# --- on the wire ----------------------------------------------------------------------------------


def pack_cost(cost: int) -> bytes:
    """A rank's cost as a word of the ring."""
    return _COST.pack(cost)


def unpack_cost(word: bytes) -> int:
    """The cost in a word of the ring."""
    if len(word) == _COST.size:
        (cost,) = _COST.unpack(word)
        if cost <= _MOST:
            return int(cost)
    raise ProtocolError(ErrorCode.BAD_PAYLOAD, f"the cost of a row: {word[:16].hex()}")
