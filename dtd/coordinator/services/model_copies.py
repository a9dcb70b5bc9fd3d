"""Which workers keep copies of each registered version, and which are to make one.  Pure.

When a version is registered, and when an operator asks again, its files are put on as many workers
as were asked for, on different hosts if there are enough.  The first copy is made of the job's
checkpoint, and decides the digests; the others are copies of it.  A worker that fails is not asked
again before the operator asks.  A disconnected worker keeps its copies: nobody can tell whether it
comes back, so an operator's request says that they count no more.  Of versions that are not known
here only those are dropped that were deleted: others were registered after the backup was taken
from which this registry was restored, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dtd.engine.shards import ShardSet, united
from dtd.registry import MOST_OF_A_WORKER
from dtd.text.names import natural_key


class Order(NamedTuple):
    """A worker is to make a copy of a version."""

    version: str
    worker: str


@dataclass(slots=True, kw_only=True)
class _Version:
    """One version.

    Attributes:
        origin: workers that have the checkpoint, and which part of it.
        wanted: copies are being made until there are enough.
    """

    copies: int
    origin: Mapping[str, ShardSet]
    holders: set[str]
    wanted: bool
    making: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


class Copies:
    """The copies of all versions."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        self._deleted: set[str] = set()
        self._hosts: dict[str, str] = {}

    # --- versions ------------------------------------------------------------------------------

    def add(
        self,
        version: str,
        *,
        copies: int,
        origin: Mapping[str, ShardSet],
        holders: Iterable[str] = (),
    ) -> None:
        """A version was registered, or is read from the store with its holders."""
        known = set(holders)
        self._versions[version] = _Version(
            copies=copies, origin=origin, holders=known, wanted=not known
        )

    def delete(self, version: str) -> list[str]:
        """A version was deleted; returns the connected workers that are to drop their copies."""
        self._deleted.add(version)
        kept = self._versions.pop(version, None)
        return sorted(kept.holders & self._hosts.keys()) if kept is not None else []

    def request(self, version: str) -> tuple[str, ...]:
        """Have copies made again: those of disconnected workers, and those that have failed.

        Copies are made of copies: without a connected worker that keeps one, nothing changes.

        Returns:
            The workers whose copies count no more.
        """
        kept = self._versions[version]
        kept.wanted = True
        kept.failed.clear()
        kept.making.clear()
        lost = kept.holders - self._hosts.keys()
        if lost == kept.holders:
            return ()
        kept.holders -= lost
        return tuple(sorted(lost, key=natural_key))

    # --- workers -------------------------------------------------------------------------------

    def arrived(
        self, worker: str, host: str, held: Iterable[str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """A worker has connected and told which versions it keeps: nothing else is true of it.

        Returns:
            Versions that it is to drop, and those that were never known here.
        """
        self._hosts[worker] = host
        there = set(held)
        for version, kept in self._versions.items():
            kept.holders.discard(worker)
            kept.making.discard(worker)
            kept.failed.pop(worker, None)
            if version in there:
                kept.holders.add(worker)
        unknown = there - self._versions.keys() - self._deleted
        return sorted(there & self._deleted), tuple(sorted(unknown))

    def left(self, worker: str) -> None:
        self._hosts.pop(worker, None)
        for kept in self._versions.values():
            kept.making.discard(worker)

    def made(self, version: str, worker: str) -> bool:
        """A worker has made a copy; returns whether it was to make it."""
        kept = self._versions.get(version)
        if kept is None or worker not in kept.making:
            return False
        kept.making.discard(worker)
        kept.holders.add(worker)
        return True

    def failed(self, version: str, worker: str, reason: str) -> None:
        kept = self._versions.get(version)
        if kept is not None and worker in kept.making:
            kept.making.discard(worker)
            kept.failed[worker] = reason

    # --- what follows --------------------------------------------------------------------------

    def decide(self) -> list[Order]:
        """The orders to give now; each is given once."""
        orders = []
        for version, kept in self._versions.items():
            if len(kept.holders) >= kept.copies:
                kept.wanted = False
            for worker in self._chosen(kept):
                kept.making.add(worker)
                orders.append(Order(version, worker))
        return orders

    def holders(self, version: str) -> tuple[str, ...]:
        """Workers that keep a copy, connected or not."""
        kept = self._versions.get(version)
        return tuple(sorted(kept.holders, key=natural_key)) if kept is not None else ()

    def held_by(self, worker: str) -> tuple[str, ...]:
        """The versions of which a worker keeps a copy."""
        return tuple(sorted(one for one, kept in self._versions.items() if worker in kept.holders))

    def explain(self, version: str) -> dict[str, Any]:
        """Return where copies are, are being made, and could not be made, and why."""
        kept = self._versions.get(version)
        holders = self.holders(version)
        return {
            "copies": kept.copies if kept is not None else 0,
            "holders": list(holders),
            "connected": [name for name in holders if name in self._hosts],
            "copying": sorted(kept.making, key=natural_key) if kept is not None else [],
            "failed": dict(sorted(kept.failed.items())) if kept is not None else {},
        }

    def _chosen(self, kept: _Version) -> list[str]:
        """The workers that are to make copies now: one first, and then the others of its copy."""
        here = [part for name, part in kept.origin.items() if name in self._hosts]
        if not kept.wanted or not (kept.holders & self._hosts.keys() or united(here).is_whole):
            return []
        lacking = kept.copies - len(kept.holders) - len(kept.making)
        if not kept.holders:
            lacking = min(lacking, 1 - len(kept.making))
        chosen: list[str] = []
        while len(chosen) < lacking and (free := self._free(kept, chosen)):
            near = kept.holders | kept.making | set(chosen)
            chosen.append(min(free, key=lambda name: self._rating(kept, name, near)))
        return chosen

    def _free(self, kept: _Version, chosen: list[str]) -> list[str]:
        """Workers that may be given a copy: one at a time, so that its tickets are fresh."""
        busy = {name for one in self._versions.values() for name in one.making}
        taken = {*kept.holders, *kept.failed, *busy, *chosen}
        return [
            name
            for name in self._hosts
            if name not in taken and len(self.held_by(name)) < MOST_OF_A_WORKER
        ]

    def _rating(self, kept: _Version, name: str, others: set[str]) -> tuple[Any, ...]:
        """The least is the best: another host, the files at hand, few copies."""
        hosts = {self._hosts.get(other) for other in others}
        part = kept.origin.get(name)
        at_hand = part is not None and part.is_whole
        load = sum(name in one.holders for one in self._versions.values())
        return self._hosts[name] in hosts, not at_hand, load, natural_key(name)
