"""The step protocol: the live state, the prepared step, and the conditions of a commit.

One `StepProtocol` belongs to one job in one process.  It sees no tensor, no socket and no clock; a
shell reports events to it and performs what it returns.  The product's shell is the training
thread (`dtd.train.run`, `dtd.train.loop`), the simulation's the modelled one.

    phase       memory holds                                      leaves it by
    EMPTY       no state that may be named                        replaced
    HELD        the live state                                    open, replace
    OPEN        the live state; the next step is open             begin, discard
    COMPUTING   the live state, and parts of a step               prepare, discard
    PREPARED    the live state, and all results of a step         judge, take_over, discard
    DECIDED     the same, and the step is to be committed         apply, commit, discard
    APPLYING    something between two states                      commit; nothing else names it

How a shell drives it:

    protocol = StepProtocol()
    way = protocol.take_over(start)                  # a generation starts from `start`
    #  COMMIT: apply the prepared step, then protocol.commit()
    #  else, or if the state is fetched from another rank:
    #          undo the step at hand, protocol.discard(); then, unless KEEP:
    #          protocol.replace(); load, reset or fetch; protocol.replaced(start)

    protocol.open()                                  # evaluation, agreement on digests
    protocol.begin(generation)                       # forward, backward, exchange
    protocol.prepare()                               # every result is here
    words = exchange(protocol.entry(flags))          # one control word a rank
    word = protocol.judge(words)
    #  commit: protocol.apply(), unless the step is skipped; change the state; protocol.commit()
    #  else:   undo the step, protocol.discard(); raise

    protocol.interrupted()                           # the ring broke: is there something to undo?
    protocol.report()                                # FROZEN: the held and the prepared state

A "step" here is what is voted on and redone as a whole: a round of several steps of the job where
the strategy takes local ones (`dtd.engine.rounds`).  `dtd.engine.agenda` says what else
is due before and after it, and `dtd.engine.digests` keeps the digest that the next
control word carries.  Calls out of order raise LocalProtocolError: the shell has a bug, and its
state must not be trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dtd.engine.control_word import (
    NO_DIGEST_STEP,
    ControlEntry,
    ControlWord,
    Flags,
    encode_entry,
    reduce_entries,
)
from dtd.errors import LocalProtocolError


class StateKey(NamedTuple):
    """The name of a state: equal keys mean equal states; the newest state has the greatest key.

    Attributes:
        generation: the one that committed its last step; 0 for a fresh state.
        step: number of committed steps.
    """

    generation: int
    step: int


FRESH: Final = StateKey(0, 0)


class Phase(Enum):
    """The phase of a process's state and of the step that follows it."""

    EMPTY = "empty"
    HELD = "held"
    OPEN = "open"
    COMPUTING = "computing"
    PREPARED = "prepared"
    DECIDED = "decided"
    APPLYING = "applying"


class TakeOver(Enum):
    """The way in which a process obtains the state from which a generation starts."""

    COMMIT = "commit the prepared step"
    KEEP = "keep what is in memory"
    AS_BUILT = "use the fresh state that was built and never changed"
    RESET = "build a fresh state"
    LOAD = "load a checkpoint"


class Reaction(Enum):
    """A rank's treatment of its state when replicas differ."""

    KEEP = "keep the state: it is the majority's"
    REBUILD = "the state is the majority's, but has no steps: build it again"
    START_AFRESH = "restart: it is the minority's"
    FORGET = "discard the state: no state has a majority"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The states in the memory of a freezing process.

    Attributes:
        live: the state of the last committed step; None if memory holds no whole state.
        prepared: the state after committing the prepared step; None if none is prepared.
    """

    live: StateKey | None
    prepared: StateKey | None


_NAMED: Final = frozenset(Phase) - {Phase.EMPTY, Phase.APPLYING}
_HAS_RESULTS: Final = frozenset({Phase.PREPARED, Phase.DECIDED})
_CHANGED: Final = frozenset({Phase.COMPUTING, *_HAS_RESULTS, Phase.APPLYING})
"""Phases in which a step has changed memory other than the live state."""

_FROM: Final = {
    "open": frozenset({Phase.HELD}),
    "begin": frozenset({Phase.HELD, Phase.OPEN}),
    "prepare": frozenset({Phase.COMPUTING}),
    "entry": frozenset({Phase.PREPARED}),
    "judge": frozenset({Phase.PREPARED}),
    "apply": frozenset({Phase.DECIDED}),
    "commit": frozenset({Phase.DECIDED, Phase.APPLYING}),
    "replace": frozenset({Phase.EMPTY, Phase.HELD}),
    "replaced": frozenset({Phase.EMPTY}),
}
"""The phases in which a call is allowed; a call that is not listed is always allowed."""


class StepProtocol:
    """One job's state and step in one process.

    Attributes:
        phase: the current phase.
    """

    def __init__(self) -> None:
        self.phase = Phase.EMPTY
        self._live = FRESH
        self._generation = 0
        self._steps = 1
        self._as_built = True

    # --- memory ----------------------------------------------------------------------------

    @property
    def live(self) -> StateKey | None:
        """Key of the state in memory; None if memory holds no complete state."""
        return self._live if self.phase in _NAMED else None

    @property
    def prepared(self) -> StateKey | None:
        """Key of the live state after committing the prepared step; None without one."""
        return self._next if self.phase in _HAS_RESULTS else None

    @property
    def _next(self) -> StateKey:
        return StateKey(self._generation, self._live.step + self._steps)

    def report(self) -> Report:
        """The contents of memory, for FROZEN."""
        return Report(live=self.live, prepared=self.prepared)

    def can_make(self, key: StateKey) -> bool:
        """Whether memory holds the state of this key, or can commit the step to it."""
        return key in (self.live, self.prepared)

    # --- taking a state over ---------------------------------------------------------------

    def take_over(self, start: StateKey) -> TakeOver:
        """Decide how this process obtains the state from which a generation starts.

        The process holds it, on its disk if not in memory.  A prepared step that does not lead
        there is void: its results may not be committed.
        """
        if start == self.prepared:
            self.phase = Phase.DECIDED
            return TakeOver.COMMIT
        self._drop_results()
        if start == self.live:
            return TakeOver.KEEP
        if start != FRESH:
            return TakeOver.LOAD
        return TakeOver.AS_BUILT if self._as_built else TakeOver.RESET

    def replace(self) -> None:
        """Begin to overwrite the live state: memory holds no state until `replaced`."""
        self._expect("replace")
        self.phase = Phase.EMPTY
        self._as_built = False

    def replaced(self, key: StateKey) -> None:
        """Record that memory now holds the state of this key."""
        self._expect("replaced")
        self.phase = Phase.HELD
        self._live = key
        self._as_built = key == FRESH

    def forget(self) -> None:
        """Discard the state, because it is unknown which replica is right.

        The shell has discarded the step at hand.
        """
        self.phase = Phase.EMPTY

    # --- a step ----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the step after the live state."""
        self._expect("open")
        self.phase = Phase.OPEN
        self._as_built = False

    def begin(self, generation: int, *, steps: int = 1) -> None:
        """Begin computing the step, of so many steps of the job, in this generation.

        Raises:
            LocalProtocolError: an older generation than the live state's cannot commit after it.
        """
        self._expect("begin")
        if generation < self._live.generation:
            raise LocalProtocolError(
                f"generation {generation} begins a step on a state of generation"
                f" {self._live.generation}"
            )
        self.phase = Phase.COMPUTING
        self._generation, self._steps = generation, steps
        self._as_built = False

    def prepare(self) -> None:
        """Record that all results of the step have arrived: survivors may commit it from now on."""
        self._expect("prepare")
        self.phase = Phase.PREPARED

    def entry(
        self, flags: Flags, *, digest_step: int = NO_DIGEST_STEP, digest: bytes = b""
    ) -> bytes:
        """This rank's control word entry; only a rank that has prepared the step votes."""
        self._expect("entry")
        return encode_entry(ControlEntry(flags=flags, digest_step=digest_step, digest=digest))

    def judge(self, entries: Sequence[bytes]) -> ControlWord:
        """Reduce all ranks' entries, in rank order; the step is to be committed if `commit` is set.

        A complete list proves that every rank has prepared the step.  If digests
        differ, the results are void.
        """
        self._expect("judge")
        word = reduce_entries(entries)
        if word.commit:
            self.phase = Phase.DECIDED
        else:
            self._drop_results()
        return word

    def apply(self) -> None:
        """Record that the update begins to change the live state; a skipped step has no update."""
        self._expect("apply")
        self.phase = Phase.APPLYING

    def commit(self) -> StateKey:
        """Commit the step; returns the key of the live state."""
        self._expect("commit")
        self._live = self._next
        self.phase = Phase.HELD
        return self._live

    # --- leaving a step --------------------------------------------------------------------

    def discard(self) -> bool:
        """Discard the current step; returns whether the shell has anything to undo.

        An interrupted update cannot be undone: memory then holds no state, whatever the shell does.
        """
        changed = self.phase in _CHANGED
        if self.phase is Phase.APPLYING:
            self.phase = Phase.EMPTY
        elif self.phase is not Phase.EMPTY:
            self.phase = Phase.HELD
        return changed

    def interrupted(self) -> bool:
        """Handle the end of the generation; returns whether the shell discards the step at once.

        Complete results are kept until the next generation's start is known; the remains of an
        interrupted update have no state key.
        """
        return self.phase not in (*_HAS_RESULTS, Phase.APPLYING)

    def _drop_results(self) -> None:
        if self.phase in _HAS_RESULTS:
            self.phase = Phase.COMPUTING

    def _expect(self, call: str) -> None:
        if self.phase not in _FROM[call]:
            raise LocalProtocolError(f"{call}() in phase {self.phase.value} of the step protocol")


def reaction(rank: int, *, step: int, dissenters: Collection[int], majority: bool) -> Reaction:
    """Return the reaction of a rank to digests that differ.

    Where all others copied the state of one rank, its vote alone is the majority, also if its
    bits have flipped.  Before the first step that costs nothing to rule out.
    """
    if not majority:
        return Reaction.FORGET
    if rank in dissenters:
        return Reaction.START_AFRESH
    return Reaction.KEEP if step else Reaction.REBUILD
