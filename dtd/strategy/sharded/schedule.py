"""The order in which one pass gathers units and reduces buckets, from one pass that was watched.

Exchanges have the same order on all ranks and are declared before they begin.  So a pass
over a few rows, when every parameter is still in memory, is recorded (`Recorder`), and each later
pass gathers in the recorded order (`Schedule`).  Passes over other rows are recorded as well, to
see that they could follow (`follow`).

    gather      a unit is needed that is not in memory
    end         forward of a unit has ended: its memory is released
    reduce      backward has computed the last gradient of a bucket

A unit whose forward ends is kept if it is gathered next: backward begins with the
unit with which forward ends.  Each gather is moved ahead by one, to be prefetched while the unit
before it is used.

`PassPlan` has the exchanges of a pass, bucket by bucket, and which of them wait for one another;
`PassOrder` is the progress of one pass in it.  Pure.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dtd.errors import TaskError
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.sharded.wire_pool import Turn

GATHER: Final = "gather"
END: Final = "end"
REDUCE: Final = "reduce"

STAGE_2: Final = "use strategy.stage = 2, which gathers no parameters"
_OTHER_ROWS: Final = f"{STAGE_2}, or let forward do the same for all rows"

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


def in_plan_order(gradients: Sequence[int]) -> Schedule:
    """Return the schedule of a pass that gathers nothing, given the parameters of each bucket."""
    reductions = [(REDUCE, bucket) for bucket in range(len(gradients))]
    return Schedule(
        gathers=(), keeps=(), exchanges=reductions, tail=len(reductions), gradients=gradients
    )


@dataclass(slots=True)
class Recorder:
    """Watches a pass in which every parameter is in memory.

    Attributes:
        unit_of: the unit of each bucket.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The exchanges of one pass, counted from its first one.

    Attributes:
        schedule: the pass that was recorded first.
        unit_of: the unit of each bucket.
        buckets_of: the buckets of each unit.
        names: a parameter of each unit, for messages.
        turns: all exchanges.
        reduces: the exchange of each bucket's gradients.
        ends: for each gather, the exchange after its last one.
        before: for each gather, the exchange after all that are started before it is awaited.
        paces: by exchange: when it is started, all before this one are complete.
    """

    schedule: Schedule
    unit_of: Sequence[int]
    buckets_of: list[list[int]]
    names: Sequence[str]
    turns: list[Turn] = field(default_factory=list)
    reduces: dict[int, int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    paces: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, schedule: Schedule, unit_of: Sequence[int] = (), names: Sequence[str] = ()
    ) -> PassPlan:
        """Turn a schedule into exchanges of buckets."""
        unit_of = unit_of or range(len(schedule.gradients))
        buckets_of: list[list[int]] = [[] for _ in range(max(unit_of, default=-1) + 1)]
        for bucket, unit in enumerate(unit_of):
            buckets_of[unit].append(bucket)
        plan = cls(schedule=schedule, unit_of=unit_of, buckets_of=buckets_of, names=names)
        for kind, number in schedule.exchanges:
            if kind == GATHER:
                if number:
                    plan.before.append(len(plan.turns))
                buckets = buckets_of[schedule.gathers[number]]
                plan.turns.extend(Turn(Operation.ALL_GATHER, bucket) for bucket in buckets)
                plan.ends.append(len(plan.turns))
            else:
                plan.reduces[number] = len(plan.turns)
                plan.turns.append(Turn(Operation.REDUCE_SCATTER, number))
        if schedule.gathers:
            plan.before.append(len(plan.turns) - schedule.tail)
        plan.paces.update(zip(plan.before, plan.ends, strict=True))
        return plan


@dataclass(slots=True)
class PassOrder:
    """Progress of one pass in its plan.

    Attributes:
        plan: its exchanges.
        sent: exchanges that have been submitted.
        gathers: gathers that have been awaited.
        ends: ends of units' forward so far.
        gathered: units in memory.
        arrived: parameters with gradients so far, by bucket.
    """

    plan: PassPlan
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
        at, gathers, names = self.gathers, self.plan.schedule.gathers, self.plan.names
        if at == len(gathers) or gathers[at] != unit:
            instead = f"where it used {names[gathers[at]]}" if at < len(gathers) else "again"
            raise TaskError(
                "the model uses its parameters in another order than in the first pass over a few"
                f" rows before training: {names[unit]} {instead}",
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
        keeps = self.plan.schedule.keeps
        kept = self.ends < len(keeps) and keeps[self.ends]
        self.ends += 1
        if not kept:
            self.gathered.discard(unit)
        return not kept

    def gradient(self, bucket: int, parameter: int) -> bool:
        """Backward has computed a gradient; returns whether the bucket's unit is released."""
        unit = self.plan.unit_of[bucket]
        if self.plan.reduces[bucket] < self.sent:
            raise TaskError(
                "backward computes gradients in another order than in the first pass over a few"
                f" rows before training, first of {self.plan.names[unit]} or of one beside it",
                remedy=_OTHER_ROWS,
            )
        self.arrived[bucket].add(parameter)
        full = all(map(self._is_full, self.plan.buckets_of[unit]))
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
        return self.plan.schedule.gradients[turn.bucket] > 0 and self._is_full(turn.bucket)

    def _is_full(self, bucket: int) -> bool:
        """Whether as many gradients are here as in the pass that was recorded first."""
        return len(self.arrived[bucket]) >= self.plan.schedule.gradients[bucket]


def follow(order: PassOrder, events: Sequence[Step]) -> None:
    """Check that another pass could be made in the order of the first one."""
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
