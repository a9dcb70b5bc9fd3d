"""Pairs of living workers that cannot reach each other.

A ring shows only that a link is broken, not which end is at fault.  A link that was reset may be
tried once more; one that fell silent, could not be made, or broke again soon is *bad*: its two ends
are not made neighbours (`dtd.cluster.generation.roster`) until probes in both directions have
passed. A link may pass every probe and fail in training, so one that goes bad again waits longer
each time before it is probed.  Pure; times are seconds of the caller's clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

PROBE_EVERY_S: Final = 2.0
MOST_PROBE_EVERY_S: Final = 128.0
GOOD_FOR_S: Final = 600.0
"""A link that has been good for this long counts as never bad."""
AGAIN_WITHIN_S: Final = 60.0
MAX_LINKS: Final = 4096
DEAD: Final = frozenset({"silent", "unreachable"})
"""Evidence that a link is dead while both its ends may be alive; other evidence may pass."""

ENDED: Final = "ended"
"""Evidence that the process at the other end has died."""

Pair = tuple[str, str]


def pair_of(one: str, other: str) -> Pair:
    """The two ends of a link, in one order."""
    return (one, other) if one < other else (other, one)


@dataclass(slots=True)
class _Probing:
    """A bad link.

    Attributes:
        at: when to probe next.
        every_s: interval of further probes.
        works: for each end that has been heard, whether the link works by its last word.
        asked: the ends that have not answered the last probe.
        passed: the directions that have passed a probe.
        narrow: by the probes, small frames pass and large ones do not.
    """

    at: float
    every_s: float = PROBE_EVERY_S
    works: dict[str, bool] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    passed: set[Pair] = field(default_factory=set)
    narrow: bool = False


def _other_end(pair: Pair, name: str) -> str:
    return pair[1] if name == pair[0] else pair[0]


@dataclass(frozen=True, slots=True)
class _Healed:
    """A link that was bad and works again: since when, and its last probe interval."""

    at: float
    every_s: float


class Links:
    """The state of the links between workers."""

    def __init__(self) -> None:
        self._accused: dict[Pair, str] = {}
        self._accidents: dict[Pair, float] = {}
        self._bad: dict[Pair, _Probing] = {}
        self._healed: dict[Pair, _Healed] = {}

    # --- evidence --------------------------------------------------------------------------

    def accuse(self, by: str, suspect: str, evidence: str) -> None:
        """A member has lost its neighbour in the current generation."""
        self._accused[by, suspect] = evidence

    def judge(self, alive: Collection[str], now: float) -> list[tuple[Pair, str]]:
        """The generation has ended; (link, evidence) of those that are bad from now on.

        A freezing member closes its links, so a reset is evidence only when both ends blame each
        other: then neither had another reason.
        """
        accused, self._accused = self._accused, {}
        said: dict[Pair, dict[str, str]] = {}
        for (by, suspect), evidence in sorted(accused.items()):
            if by in alive and suspect in alive:
                said.setdefault(pair_of(by, suspect), {})[by] = evidence
        bad: dict[Pair, dict[str, str]] = {}
        for pair, both in said.items():
            dead = {by: evidence for by, evidence in both.items() if evidence in DEAD}
            mutual = len(both) == 2
            if pair in self._bad or not (dead or mutual):
                continue
            if dead or self._happened_before(pair, now):
                bad[pair] = dead or both
        for pair in list(bad)[: max(0, MAX_LINKS - len(self._bad))]:
            self._bad[pair] = self._probing(pair, now)
            self._bad[pair].works = dict.fromkeys(bad[pair], False)
        return [(pair, next(iter(by.values()))) for pair, by in bad.items()]

    def _probing(self, pair: Pair, now: float) -> _Probing:
        """Begin probing, at once unless the last probes have passed and proved nothing."""
        self._healed = {p: past for p, past in self._healed.items() if now - past.at < GOOD_FOR_S}
        past = self._healed.pop(pair, None)
        if past is None:
            return _Probing(at=now)
        every_s = min(2 * past.every_s, MOST_PROBE_EVERY_S)
        return _Probing(at=now + every_s, every_s=every_s)

    def _happened_before(self, pair: Pair, now: float) -> bool:
        before = self._accidents.get(pair)
        self._accidents = {p: at for p, at in self._accidents.items() if now - at < AGAIN_WITHIN_S}
        self._accidents[pair] = now
        return before is not None and now - before < AGAIN_WITHIN_S

    def forget(self, name: str) -> None:
        """Forget the links of a worker that is gone or has restarted."""
        self._accused = {pair: why for pair, why in self._accused.items() if name not in pair}
        self._accidents = {pair: at for pair, at in self._accidents.items() if name not in pair}
        self._bad = {pair: probing for pair, probing in self._bad.items() if name not in pair}
        self._healed = {pair: past for pair, past in self._healed.items() if name not in pair}

    # --- what follows from it ----------------------------------------------------------------

    @property
    def bad(self) -> frozenset[Pair]:
        """Links that must not be used."""
        return frozenset(self._bad)

    def unreachable_from(self, name: str) -> list[str]:
        """The workers to which this worker has no working link."""
        return sorted(_other_end(pair, name) for pair in self._bad if name in pair)

    def one_way(self) -> dict[Pair, str]:
        """Bad links that work one way alone, with the end that does not reach the other."""
        return {
            pair: next(name for name, works in probing.works.items() if not works)
            for pair, probing in self._bad.items()
            if len(set(probing.works.values())) > 1
        }

    def is_narrow(self, pair: Pair) -> bool:
        """Whether small frames pass this bad link, and large ones do not."""
        return self._bad[pair].narrow

    def probed_every_s(self, pair: Pair) -> float:
        """Return the seconds between two probes of this bad link."""
        return self._bad[pair].every_s

    # --- probing -----------------------------------------------------------------------------

    def due(self, alive: Collection[str], now: float) -> list[Pair]:
        """(prober, target) of every probe that is due; schedules the next ones."""
        probes: list[Pair] = []
        for (one, other), probing in self._bad.items():
            if now >= probing.at:
                probing.at, probing.passed = now + probing.every_s, set()
                probing.works |= dict.fromkeys(probing.asked, False)  # a missing answer is none
                probing.asked = set()
                if one in alive and other in alive:
                    probing.asked = {one, other}
                    probes += [(one, other), (other, one)]
        return probes

    def answered(
        self, by: str, suspect: str, now: float, *, reachable: bool, greeted: bool = False
    ) -> bool:
        """A probe has come back; True when the link is good again in both directions.

        It was `reachable` if the whole transfer arrived, and `greeted` if small frames did.
        """
        pair = pair_of(by, suspect)
        probing = self._bad.get(pair)
        if probing is None:
            return False
        probing.asked.discard(by)
        probing.works[by] = reachable
        if not reachable:
            probing.narrow = greeted
            return False
        probing.passed.add((by, suspect))
        if len(probing.passed) < 2:
            return False
        del self._bad[pair]
        self._healed[pair] = _Healed(now, probing.every_s)
        return True

    def next_deadline(self) -> float | None:
        """Return when a probe is due."""
        return min((probing.at for probing in self._bad.values()), default=None)
