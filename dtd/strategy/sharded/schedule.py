"""The order in which one pass gathers units and reduces buckets, from one pass that was watched.

Exchanges have the same order on all ranks and are declared before they begin.  So a pass
over a few rows, when every parameter is still in memory, is recorded (`Recorder`), and each later
pass gathers in the recorded order (`Schedule`).  Passes over other rows are recorded as well, to
see that they could follow (`dtd.strategy.sharded.pass_plan`).

    gather      a unit is needed that is not in memory
    end         forward of a unit has ended: its memory is released
    reduce      backward has computed the last gradient of a bucket

A unit whose forward ends is kept if it is gathered next: backward begins with the
unit with which forward ends.  Each gather is moved ahead by one, to be prefetched while the unit
before it is used.  Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

GATHER: Final = "gather"
END: Final = "end"
REDUCE: Final = "reduce"

Step = tuple[str, int]
"""(kind, unit or bucket)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One pass.

    Attributes:
        gathers: units in the order in which they are needed.
        keeps: for each end of a unit's forward, in order, whether the unit stays in memory.
        exchanges: (GATHER, index in `gathers`) and (REDUCE, bucket), in the order of the ring.
        tail: the last reductions in `exchanges`, which come after the last gather.
        gradients: for each bucket, how many of its parameters have gradients at most.
    """

    gathers: Sequence[int]
    keeps: Sequence[bool]
    exchanges: Sequence[Step]
    tail: int
    gradients: Sequence[int]

    def digest(self) -> str:
        """Hash of it; workers with equal ones can train together."""
        content = f"{self.gathers} {self.keeps} {self.exchanges} {self.gradients}"
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class Recorder:
    """Watches a pass in which every parameter is in memory.

    Args:
        unit_of: the unit of each bucket.

    Attributes:
        here: units that would be in memory now, in forward.
        events: units that were used, units whose forward ended, buckets with another gradient.
    """

    unit_of: Sequence[int]
    here: set[int] = field(default_factory=set)
    events: list[Step] = field(default_factory=list)
    _arrived: set[tuple[int, int]] = field(default_factory=set)

    def need(self, unit: int) -> None:
        """A parameter of this unit is used."""
        self.here.add(unit)
        if not self.events or self.events[-1] != (GATHER, unit):
            self.events.append((GATHER, unit))

    def end(self, unit: int) -> None:
        """Forward of this unit has ended."""
        self.here.discard(unit)
        self.events.append((END, unit))

    def gradient(self, bucket: int, parameter: int) -> None:
        """Backward has computed a gradient."""
        if (bucket, parameter) not in self._arrived:
            self._arrived.add((bucket, parameter))
            self.events.append((REDUCE, bucket))

    @property
    def gradients(self) -> list[int]:
        """For each bucket, how many of its parameters had gradients."""
        counts = [0] * len(self.unit_of)
        for bucket, _ in self._arrived:
            counts[bucket] += 1
        return counts

    def schedule(self) -> Schedule:
        """Return the recorded schedule; buckets without gradients are reduced at the end."""
        counts = self.gradients
        unreached = [(REDUCE, bucket) for bucket, count in enumerate(counts) if not count]
        keeps, steps = _without_kept([*self._happened(counts), *unreached])
        exchanges, tail = _ahead(steps)
        return Schedule(
            gathers=[unit for kind, unit in steps if kind == GATHER],
            keeps=keeps,
            exchanges=exchanges,
            tail=tail,
            gradients=counts,
        )

    def _happened(self, counts: Sequence[int]) -> list[Step]:
        """Return the steps; a unit is released after its forward and after its last gradient."""
        left, gathered = list(counts), set[int]()
        steps: list[Step] = []
        for kind, number in self.events:
            if kind == GATHER:
                if number not in gathered:
                    gathered.add(number)
                    steps.append((kind, number))
            elif kind == END:
                gathered.discard(number)
                steps.append((kind, number))
            else:
                left[number] -= 1
                if not left[number]:
                    steps.append((kind, number))
                    unit = self.unit_of[number]
                    if not any(left[b] for b, one in enumerate(self.unit_of) if one == unit):
                        gathered.discard(unit)
        return steps


def _without_kept(events: Sequence[Step]) -> tuple[list[bool], list[Step]]:
    """Return which ends keep their unit, and the gathers and reductions that are left."""
    keeps, steps = [], []
    dropped: set[int] = set()
    for at, (kind, number) in enumerate(events):
        if kind == END:
            after = next((i for i in range(at, len(events)) if events[i][0] != END), None)
            kept = after is not None and events[after] == (GATHER, number)
            keeps.append(kept)
            if kept and after is not None:
                dropped.add(after)
        elif at not in dropped:
            steps.append((kind, number))
    return keeps, steps


def _ahead(steps: Sequence[Step]) -> tuple[list[Step], int]:
    """Number the gathers, and move each one ahead to the one before it.

    Returns:
        All exchanges, and how many come after the last gather.
    """
    order: list[Step] = []
    waiting: list[Step] = []  # reductions since the last gather
    gathers = 0
    for kind, number in steps:
        if kind != GATHER:
            waiting.append((kind, number))
            continue
        order.append((GATHER, gathers))
        gathers += 1
        if gathers > 1:
            order += waiting
            waiting = []
    return order + waiting, len(waiting)
