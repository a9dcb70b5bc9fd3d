"""The exchanges of one pass, bucket by bucket, and which of them wait for one another.  Pure.

A pass has to use units in the order of its plan (`PassOrder`): in training, where another order
ends the job, and before that in passes over a few other rows (`follow`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dtd.errors import TaskError
from dtd.exchange.ring.chunks import Operation
from dtd.strategy.sharded.schedule import END, GATHER, Schedule, Step
from dtd.strategy.sharded.wire_pool import Turn

STAGE_2: Final = "use strategy.stage = 2, which gathers no parameters"
_OTHER_ROWS: Final = f"{STAGE_2}, or let forward do the same for all rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass; exchanges are counted from its first one.

    Attributes:
        turns: all exchanges.
        reduces: the exchange of each bucket's gradients.
        ends: for each gather, the exchange after its last one.
        before: for each gather, the exchange after all that are started before it is awaited.
        paces: by exchange: when it is started, all before this one are complete.
    """

    turns: Sequence[Turn]
    reduces: Mapping[int, int]
    ends: Sequence[int]
    before: Sequence[int]
    paces: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Derive `paces`."""
        object.__setattr__(self, "paces", dict(zip(self.before, self.ends, strict=True)))

    @classmethod
    def of(cls, schedule: Schedule, buckets_of: Sequence[Sequence[int]]) -> PassPlan:
        """Turn a schedule into exchanges of buckets.

        Args:
            schedule: the order of units and gradients.
            buckets_of: the buckets of each unit.
        """
        turns: list[Turn] = []
        reduces: dict[int, int] = {}
        ends: list[int] = []
        before: list[int] = []
        for kind, number in schedule.exchanges:
            if kind == GATHER:
                if number:
                    before.append(len(turns))
                buckets = buckets_of[schedule.gathers[number]]
                turns += [Turn(Operation.ALL_GATHER, bucket) for bucket in buckets]
                ends.append(len(turns))
            else:
                reduces[number] = len(turns)
                turns.append(Turn(Operation.REDUCE_SCATTER, number))
        before.append(len(turns) - schedule.tail)
        return cls(turns=turns, reduces=reduces, ends=ends, before=before)


@dataclass(slots=True, kw_only=True)
class PassOrder:
    """Progress of one pass in its plan.

    Attributes:
        schedule: the pass that was recorded first.
        plan: its exchanges.
        unit_of: the unit of each bucket.
        buckets_of: the buckets of each unit.
        names: a parameter of each unit, for messages.
        sent: exchanges that have been submitted.
        gathers: gathers that have been awaited.
        ends: ends of units' forward so far.
        gathered: units in memory.
        arrived: parameters with gradients so far, by bucket.
    """

    schedule: Schedule
    plan: PassPlan
    unit_of: Sequence[int]
    buckets_of: Sequence[Sequence[int]]
    names: Sequence[str]
    sent: int = 0
    gathers: int = 0
    ends: int = 0
    gathered: set[int] = field(default_factory=set)
    arrived: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def need(self, unit: int) -> int | None:
        """A unit is used; returns the gather to await, None if the unit is in memory.

        Raises:
            TaskError: another unit comes next in the plan.
        """
        if unit in self.gathered:
            return None
        at, gathers = self.gathers, self.schedule.gathers
        if at == len(gathers) or gathers[at] != unit:
            instead = f"where it used {self.names[gathers[at]]}" if at < len(gathers) else "again"
            raise TaskError(
                "the model uses its parameters in another order than in the first pass over a few"
                f" rows before training: {self.names[unit]} {instead}",
                remedy=_OTHER_ROWS,
            )
        self.gathers += 1
        self.gathered.add(unit)
        return at

    def ahead(self, gather: int) -> int:
        """The exchange after all that are submitted before a unit is used: the next is fetched."""
        ends = self.plan.ends
        return ends[gather + 1] if gather + 1 < len(ends) else self.plan.before[gather]

    def end(self, unit: int) -> bool:
        """Forward of a unit has ended; returns whether the unit is released."""
        keeps = self.schedule.keeps
        kept = self.ends < len(keeps) and keeps[self.ends]
        self.ends += 1
        if not kept:
            self.gathered.discard(unit)
        return not kept

    def gradient(self, bucket: int, parameter: int) -> bool:
        """Backward has computed a gradient; returns whether the bucket's unit is released.

        Raises:
            TaskError: the bucket has been submitted.
        """
        unit = self.unit_of[bucket]
        if self.plan.reduces[bucket] < self.sent:
            raise TaskError(
                "backward computes gradients in another order than in the first pass over a few"
                f" rows before training, first of {self.names[unit]} or of one beside it",
                remedy=_OTHER_ROWS,
            )
        self.arrived[bucket].add(parameter)
        full = all(map(self._is_full, self.buckets_of[unit]))
        if full:
            self.gathered.discard(unit)
        return full

    def may_leave(self) -> bool:
        """Whether the next exchange is a bucket with all its gradients."""
        if self.sent == len(self.plan.turns):
            return False
        turn = self.plan.turns[self.sent]
        if turn.operation is not Operation.REDUCE_SCATTER:
            return False
        return self.schedule.gradients[turn.bucket] > 0 and self._is_full(turn.bucket)

    def _is_full(self, bucket: int) -> bool:
        """Whether as many gradients are here as in the pass that was recorded first."""
        return len(self.arrived[bucket]) >= self.schedule.gradients[bucket]


def follow(order: PassOrder, events: Sequence[Step]) -> None:
    """Check that another pass could be made in the order of the first one.

    Args:
        order: the beginning of a pass.
        events: those of the other one.

    Raises:
        TaskError: it could not.
    """
    for number, (kind, what) in enumerate(events):
        if kind == GATHER:
            gather = order.need(what)
            if gather is not None:
                order.sent = max(order.sent, order.ahead(gather))
        elif kind == END:
            order.end(what)
        else:
            order.gradient(what, number)
            while order.may_leave():
                order.sent += 1
