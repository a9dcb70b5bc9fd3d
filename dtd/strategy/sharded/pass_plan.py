"""The exchanges of one pass, bucket by bucket, and which of them wait for one another.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dtd.core.ring.chunks import Operation
from dtd.strategy.sharded.schedule import GATHER, Schedule
from dtd.strategy.sharded.wire_pool import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """One pass; exchanges are counted from its first one.

    Attributes:
        turns: all exchanges.
        reduces: the exchange of each bucket's gradients.
        ends: for each gather, the exchange after its last one.
        before: for each gather, the exchange after all that are started before it is awaited.
        paces: by exchange: what is complete before it is started, all before this one.
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
