"""Copies of each registered model's version on workers.  Pure.

The files of a version are kept on as many workers as were asked for, on different hosts if there
are enough.  The first copy is made of the job's checkpoint, and decides the digests; the others are
copies of it.  A disconnected worker keeps its copies: nobody can tell whether it comes back, so an
operator says with `repair` that they count no more.  If it comes back with its files after that, a
copy beyond those asked for is dropped.  Of versions that are not known here only those are dropped
that were deleted: others were registered after the backup was taken from which this registry was
restored, or elsewhere.  A worker counts from when it has told which versions it keeps, and has one
order at a time.  What is not answered in time has failed, and what failed is tried again later,
elsewhere first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dtd.cluster.roster import natural_key
from dtd.engine.shards import ShardSet, united

ANSWER_WITHIN_S: Final = 3600.0
"""Bound on one copy: gigabytes over a slow link take their time."""
MOST_OF_A_WORKER: Final = 512
"""Versions that one worker keeps: it names all of them in one message."""
RETRY_S: Final = 5.0
"""The pause after a first failure; it doubles."""
LONGEST_RETRY_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A worker is to make a copy of a version."""

    version: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
    """A worker is to delete its copy of a version."""

    version: str
    worker: str


Order = Pin | Unpin


@dataclass(slots=True, kw_only=True)
class _Failure:
    reason: str
    until: float
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Making:
    """The order that a worker carries out."""

    version: str
    until: float


@dataclass(slots=True, kw_only=True)
class _Kept:
    """One version.

    Attributes:
        copies: how many are wanted.
        origin: workers that have the checkpoint, and which part of it.
        holders: workers that keep a copy, connected or not.
        failed: workers that could not.
    """

    copies: int
    origin: Mapping[str, ShardSet]
    holders: set[str] = field(default_factory=set)
    failed: dict[str, _Failure] = field(default_factory=dict)


class Pinning:
    """The copies of all versions."""

    def __init__(self) -> None:
        self._versions: dict[str, _Kept] = {}
        self._hosts: dict[str, str] = {}
        self._strays: dict[tuple[str, str], None] = {}
        self._deleted: set[str] = set()
        self._making: dict[str, _Making] = {}

    # --- what happens --------------------------------------------------------------------------

    def wanted(
        self,
        version: str,
        *,
        copies: int,
        origin: Mapping[str, ShardSet],
        holders: Iterable[str] = (),
    ) -> None:
        """A version was registered, or is read from the store with its holders."""
        self._versions[version] = _Kept(copies=copies, origin=origin, holders=set(holders))

    def forgotten(self, version: str) -> None:
        """A version was deleted; a worker that is away, or still copies it, deletes it later."""
        self._deleted.add(version)
        kept = self._versions.pop(version, None)
        for worker in sorted(kept.holders if kept is not None else ()):
            if worker in self._hosts:
                self._strays[version, worker] = None

    def arrived(self, worker: str, host: str, held: Iterable[str]) -> tuple[str, ...]:
        """A worker has connected and told which versions it keeps: nothing else is true of it.

        Returns:
            Those that were never known here; they stay as they are.
        """
        self._hosts[worker] = host
        self._making.pop(worker, None)
        there = set(held)
        for version, kept in self._versions.items():
            kept.holders.discard(worker)
            kept.failed.pop(worker, None)
            if version in there:
                kept.holders.add(worker)
        for version in sorted(there & self._deleted):
            self._strays[version, worker] = None
        return tuple(sorted(there - self._versions.keys() - self._deleted))

    def left(self, worker: str) -> None:
        """A worker's connection has ended."""
        if self._hosts.pop(worker, None) is None:
            return
        self._making.pop(worker, None)
        self._strays = {key: None for key in self._strays if key[1] != worker}

    def repair(self, version: str, now: float) -> tuple[str, ...]:
        """Have the copies of disconnected workers made elsewhere, and retry failed ones at once.

        Copies are made of copies: without a connected worker that keeps one, nothing changes.

        Returns:
            The workers whose copies count no more.
        """
        kept = self._versions.get(version)
        if kept is None:
            return ()
        for failure in kept.failed.values():
            failure.until = min(failure.until, now)
        lost = kept.holders - self._hosts.keys()
        if lost == kept.holders:
            return ()
        kept.holders -= lost
        return tuple(sorted(lost, key=natural_key))

    def pinned(self, version: str, worker: str) -> bool:
        """A worker has made a copy that it was to make; whether it was, and the copy counts."""
        if not self._ends(version, worker):
            return False
        kept = self._versions.get(version)
        if kept is None:
            self._strays[version, worker] = None
            return False
        kept.failed.pop(worker, None)
        kept.holders.add(worker)
        return True

    def failed(self, version: str, worker: str, reason: str, now: float) -> None:
        """A worker could not make the copy that it was to make."""
        kept = self._versions.get(version)
        if not self._ends(version, worker) or kept is None:
            return
        before = kept.failed.get(worker)
        pause_s = min(2 * before.pause_s, LONGEST_RETRY_S) if before is not None else RETRY_S
        kept.failed[worker] = _Failure(reason=reason, until=now + pause_s, pause_s=pause_s)

    def _ends(self, version: str, worker: str) -> bool:
        """Take note that a worker has done with an order; whether it had that one."""
        making = self._making.get(worker)
        if making is None or making.version != version:
            return False
        del self._making[worker]
        return True

    # --- what follows --------------------------------------------------------------------------

    def decide(self, now: float) -> list[Order]:
        """The orders to give now; each is given once."""
        for worker in [name for name, one in self._making.items() if one.until <= now]:
            self.failed(self._making[worker].version, worker, "it did not answer in time", now)
        strays, self._strays = self._strays, {}
        orders: list[Order] = [Unpin(version=one, worker=worker) for one, worker in strays]
        for version, kept in self._versions.items():
            for worker in self._to_pin(version, kept, now):
                self._making[worker] = _Making(version=version, until=now + ANSWER_WITHIN_S)
                orders.append(Pin(version=version, worker=worker))
            for worker in self._to_unpin(version, kept):
                kept.holders.discard(worker)
                orders.append(Unpin(version=version, worker=worker))
        return orders

    def next_deadline(self, now: float) -> float | None:
        """Return when `decide` must be called if nothing happens before."""
        return min((moment for moment in self._moments() if moment > now), default=None)

    def holders(self, version: str) -> tuple[str, ...]:
        """Workers that keep a copy, connected or not."""
        kept = self._versions.get(version)
        return tuple(sorted(kept.holders, key=natural_key)) if kept is not None else ()

    def held_by(self, worker: str) -> tuple[str, ...]:
        """The versions of which a worker keeps a copy."""
        return tuple(sorted(one for one, kept in self._versions.items() if worker in kept.holders))

    def is_settled(self, version: str) -> bool:
        """Whether there is a copy, so that the checkpoint is not needed any more."""
        return bool(self.holders(version))

    def explain(self, version: str) -> dict[str, Any]:
        """Return where copies are, are being made, and could not be made, and why."""
        kept = self._versions.get(version) or _Kept(copies=0, origin={})
        return {
            "copies": kept.copies,
            "holders": list(self.holders(version)),
            "connected": [name for name in self.holders(version) if name in self._hosts],
            "copying": sorted(self._copying(version), key=natural_key),
            "failed": {name: kept.failed[name].reason for name in sorted(kept.failed)},
        }

    # --- one version -----------------------------------------------------------------------------

    def _copying(self, version: str) -> set[str]:
        return {name for name, one in self._making.items() if one.version == version}

    def _to_pin(self, version: str, kept: _Kept, now: float) -> list[str]:
        alive = kept.holders & self._hosts.keys()
        here = [part for name, part in kept.origin.items() if name in self._hosts]
        if not alive and not united(here).is_whole:
            return []
        copying = self._copying(version)
        lacking = kept.copies - len(kept.holders) - len(copying)
        if not kept.holders:
            lacking = min(lacking, 1 - len(copying))
        near = kept.holders | copying
        chosen: list[str] = []
        while len(chosen) < lacking:
            free = list(self._free(kept, chosen, now))
            if not free:
                break
            chosen.append(min(free, key=lambda name: self._rating(kept, name, {*near, *chosen})))
        return chosen

    def _free(self, kept: _Kept, chosen: list[str], now: float) -> Iterator[str]:
        """Workers that may be given a copy now."""
        for name in self._hosts:
            failure = kept.failed.get(name)
            paused = failure is not None and failure.until > now
            full = len(self.held_by(name)) >= MOST_OF_A_WORKER
            taken = name in kept.holders or name in self._making or name in chosen
            if not (taken or paused or full):
                yield name

    def _rating(self, kept: _Kept, name: str, others: set[str]) -> tuple[Any, ...]:
        """The least is the best: another host, no failure yet, the files at hand, few copies."""
        near = {self._hosts.get(other) for other in others}
        part = kept.origin.get(name)
        at_hand = part is not None and part.is_whole
        load = sum(name in one.holders for one in self._versions.values())
        has_failed = name in kept.failed
        return self._hosts[name] in near, has_failed, not at_hand, load, natural_key(name)

    def _to_unpin(self, version: str, kept: _Kept) -> list[str]:
        """Copies beyond those asked for: where hosts have several, the last names first."""
        alive = sorted(kept.holders & self._hosts.keys(), key=natural_key)
        copying = self._copying(version)
        dropped: list[str] = []
        while not copying and len(alive) > kept.copies:
            hosts = [self._hosts[name] for name in alive]
            doubled = [name for name in alive if hosts.count(self._hosts[name]) > 1]
            dropped.append((doubled or alive)[-1])
            alive.remove(dropped[-1])
        return dropped

    def _moments(self) -> Iterator[float]:
        yield from (one.until for one in self._making.values())
        for kept in self._versions.values():
            yield from (one.until for one in kept.failed.values())
