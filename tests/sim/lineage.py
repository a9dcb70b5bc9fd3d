"""The oracle's safety rules: each job has one line of committed steps, and none of them is lost.

Once any rank has committed a step, or the coordinator has decided that it is committed:

* no rank commits it differently (the lineage names the generation of every step);
* every later generation starts from it or from a later step of its branch, unless no worker is left
  that holds it in memory or has prepared it: every member of the last generation is gone, or was
  waited for as long as the product promises, or has discarded its state because replicas differed
  without a majority;
* a member of the generation that committed it never copies it from another worker;
* steps that the coordinator counts as lost were lost;
* retention does not delete checkpoints of lost steps, unless a restored store has forgotten that
  they were lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from dtd.engine.shards import united
from dtd.wire import messages as m
from tests.sim.replica import Key, State


class Broken(AssertionError):
    """A rule was broken; the message names the rule and the process that broke it."""


def require(holds: bool, rule: str, *details: Any) -> None:
    """Raise Broken if a rule does not hold."""
    if not holds:
        raise Broken(": ".join([rule, *map(str, details)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A living worker's state of a job; `prepared` is the state it would hold after a commit."""

    name: str
    incarnation: int
    state: State
    prepared: State | None


@dataclass(slots=True)
class Line:
    """One job's committed steps.

    Attributes:
        lineages: the lineage after each step.
        last: the last step.
        lost: number of steps that were lost.
        left: the lineages of each branch that the job has left.
    """

    lineages: dict[int, str] = field(default_factory=lambda: {0: ""})
    last: int = 0
    lost: int = 0
    left: list[dict[int, str]] = field(default_factory=list)


def _is_whole(witnesses: Iterable[tuple[str, State]], state: State) -> bool:
    """Whether those that remember a state have all shards of it."""
    return united(one.part for _, one in witnesses if one.key == state.key).is_whole


class Lineage:
    """The lines of all jobs."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._starts: dict[tuple[str, int], Key] = {}
        self._expelled: set[tuple[str, int]] = set()
        self._members: dict[str, Collection[str]] = {}
        self._given_up: set[str] = set()
        self._fell_back: set[tuple[str, int]] = set()
        self._known: dict[tuple[str, Key], str] = {}  # the lineage of each committed state
        self._took_part: set[tuple[str, int, int]] = set()
        self._went_back = False
        self._backed_up: set[str] = set()  # what was given up when the store was backed up
        self._forgotten: set[str] = set()  # what was given up, as no store knows any more

    def lost(self, job: str) -> int:
        """Number of committed steps that no worker held in memory any more."""
        return self._line(job).lost

    # --- generations -----------------------------------------------------------------------

    def decided(
        self,
        job: str,
        generation: int,
        start: Key,
        *,
        members: Collection[str],
        living: Iterable[Memory],
        excused: Callable[[str], bool] = lambda _: False,
        on_disk: bool = True,
    ) -> None:
        """The coordinator has decided the members and the starting state of a generation.

        The decision may ignore the states of workers that are `excused`.  `on_disk`: a disk has had
        the starting state.
        """
        if self._starts.get((job, generation)) == start:
            return
        self._starts[job, generation] = start
        line, memories = self._line(job), list(living)
        kept = self._kept(job, start)
        if kept < line.last:
            self._lose(job, generation, start, kept, memories, excused)
        self._take_up(line, start[1], self._known.get((job, start), ""))
        self._take_in(line, start, memories, on_disk=on_disk)
        self._members[job] = members

    def _kept(self, job: str, start: Key) -> int:
        """Return the number of the line's steps that a generation from this state keeps.

        One on a branch that was left keeps those before the fork, however many steps it has itself.
        """
        line, lineage = self._line(job), self._known.get((job, start), "")
        if lineage not in self._given_up or line.lineages.get(start[1]) == lineage:
            return min(start[1], line.last)
        branch = self._left_with(line, start[1], lineage).items()
        return max((step for step, one in branch if line.lineages.get(step) == one), default=0)

    def expelled(self, name: str, incarnation: int) -> None:
        """The coordinator has told a worker to restart, so its state no longer counts."""
        self._expelled.add((name, incarnation))

    def _lose(
        self,
        job: str,
        generation: int,
        start: Key,
        kept: int,
        memories: list[Memory],
        excused: Callable[[str], bool],
    ) -> None:
        line, last_members = self._line(job), self._members.get(job, ())
        witnesses = [
            (memory.name, state)
            for memory in memories
            if memory.name in last_members
            and not excused(memory.name)
            and (memory.name, memory.incarnation) not in self._expelled
            for state in (memory.state, memory.prepared)
            if state and state.step > kept and line.lineages.get(state.step) == state.lineage
        ]
        require(
            not any(_is_whole(witnesses, state) for _, state in witnesses),
            "committed steps are lost that somebody remembers",
            f"generation {generation} starts from {start}, not from step {line.last}",
            [name for name, _ in witnesses],
        )
        self._fell_back.add((job, generation))
        line.lost += max(0, line.last - start[1])  # an old branch may have more steps than are lost
        line.last = kept
        line.left.append(line.lineages)
        lost = {known for step, known in line.lineages.items() if step > kept}
        self._given_up |= lost
        self._forgotten -= lost
        line.lineages = {step: known for step, known in line.lineages.items() if step <= kept}
        prepared = {one.prepared.lineage for one in memories if one.prepared is not None}
        self._given_up |= prepared - set(line.lineages.values())

    def _take_in(self, line: Line, start: Key, memories: list[Memory], *, on_disk: bool) -> None:
        """A step that was only prepared is committed by the decision."""
        known = [state for one in memories for state in (one.state, one.prepared)]
        held = [state for state in known if state is not None and state.key == start]
        if held or on_disk:
            line.last = max(line.last, start[1])
        for state in held:
            line.lineages.setdefault(start[1], state.lineage)

    def assigned(self, assign: m.Assign) -> None:
        """A worker has been told the starting state of its generation."""
        decided = self._starts.get((assign.job, assign.generation))
        told = (assign.held_generation, assign.held_step)
        require(decided == told, "a worker is told of another start than was decided", told)

    # --- workers ---------------------------------------------------------------------------

    def took_part(self, assign: m.Assign, incarnation: int) -> None:
        """A worker knows that all ranks of a generation have joined with the same state."""
        self._took_part.add((assign.job, assign.generation, incarnation))

    def copies(self, assign: m.Assign, incarnation: int, own: State | None) -> None:
        """A worker is about to copy the starting state of its generation."""
        key = (assign.job, assign.held_generation, incarnation)
        require(
            own is None or key not in self._took_part,
            "a survivor copies state from another",
            assign.roster[assign.rank].name,
            own,
            f"generation {assign.generation} starts from step {assign.held_step}",
        )

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A worker has the starting state of its generation."""
        require(
            state.key == (assign.held_generation, assign.held_step),
            "a worker starts from another state than it was told",
            assign,
            state,
        )
        if self._went_back or (assign.job, assign.generation) in self._fell_back:
            self._fell_back.discard((assign.job, assign.generation))
            self._take_up(self._line(state.job), state.step, state.lineage)
        self._in_line(state, "starts from")

    def backed_up(self) -> None:
        """The store is backed up, with the branches that jobs have left so far."""
        self._backed_up = set(self._given_up)

    def went_back(self) -> None:
        """The store is restored, and may not know that a job has left a branch."""
        self._went_back = True
        self._forgotten = self._given_up - self._backed_up

    def _take_up(self, line: Line, step: int, lineage: str) -> None:
        """A job that goes back may resume an abandoned branch, and abandon the current one."""
        if lineage in self._given_up and line.lineages.get(step) != lineage:
            taken = self._left_with(line, step, lineage)
            taken = {at: one for at, one in taken.items() if at <= step}
            line.left.append(line.lineages)
            self._given_up |= set(line.lineages.values())
            self._given_up -= set(taken.values())
            line.lineages, line.last = taken, step

    def _left_with(self, line: Line, step: int, lineage: str) -> dict[int, str]:
        """The branch that was left with this state; of a step that was only prepared, it alone."""
        mine = {step: lineage}
        return next((one for one in line.left if mine.items() <= one.items()), mine)

    def removed(self, states: Iterable[State]) -> None:
        """Retention has removed these checkpoints."""
        for state in states:
            require(
                state.lineage not in self._given_up - self._forgotten,
                "a checkpoint is deleted of a branch that the job has left",
                state.key,
            )

    def is_given_up(self, state: State) -> bool:
        """Whether the state is of lost steps that a worker not waited for was still completing."""
        return state.lineage in self._given_up

    def committed(self, state: State) -> None:
        """A rank has committed a step."""
        self._in_line(state, "commits")
        self._known[state.job, state.key] = state.lineage
        line = self._line(state.job)
        line.lineages[state.step] = state.lineage
        line.last = max(line.last, state.step)

    def _in_line(self, state: State, verb: str) -> None:
        known = self._line(state.job).lineages.get(state.step, state.lineage)
        require(
            known == state.lineage,
            "a step is committed in two ways",
            f"generation {state.generation} {verb} step {state.step}",
        )

    def _line(self, job: str) -> Line:
        return self._lines.setdefault(job, Line())
