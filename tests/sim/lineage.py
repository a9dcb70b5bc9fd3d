"""The safety argument as a judge: one line of committed steps per job, and nothing of it is lost.

Once any rank has committed a step, or the coordinator has decided that it is committed:

* nobody commits it in another way (the lineage names the generation of every step);
* every later generation starts from it or from a later one, unless nobody is left who remembers it
  or holds it prepared: of the last generation's members all are gone, or have forgotten because no
  majority could say who is right;
* whoever took part in the generation that committed it never copies it from another;
* steps that the coordinator counts as lost were lost;
* checkpoints of steps that are lost are not deleted by retention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from dtd.wire import messages as m
from tests.sim.replica import Key, State


class Broken(AssertionError):
    """A rule was broken; the message says which, and who did it."""


def require(holds: bool, rule: str, *details: Any) -> None:
    """Raise when a rule does not hold."""
    if not holds:
        raise Broken(": ".join([rule, *map(str, details)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a living worker remembers of a job: `prepared` is what it would hold after a commit."""

    name: str
    incarnation: int
    state: State
    prepared: State | None


@dataclass(slots=True)
class Line:
    """One job's committed steps: the lineage after each, the last one, how many were lost."""

    lineages: dict[int, str] = field(default_factory=lambda: {0: ""})
    last: int = 0
    lost: int = 0


class Lineage:
    """The lines of all jobs."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._starts: dict[tuple[str, int], Key] = {}
        self._expelled: set[tuple[str, int]] = set()
        self._members: dict[str, Collection[str]] = {}
        self._given_up: set[str] = set()
        self._took_part: set[tuple[str, int, int]] = set()

    def lost(self, job: str) -> int:
        """Committed steps that nobody remembered any more."""
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
    ) -> None:
        """The coordinator has decided who is in a generation and what it starts from."""
        if self._starts.get((job, generation)) == start:
            return
        self._starts[job, generation] = start
        line, memories = self._line(job), list(living)
        if start[1] < line.last:
            self._lose(job, generation, start, memories)
        self._take_in(line, start, memories)
        self._members[job] = members

    def expelled(self, name: str, incarnation: int) -> None:
        """The coordinator has told a worker to start afresh: it is as good as gone."""
        self._expelled.add((name, incarnation))

    def _lose(self, job: str, generation: int, start: Key, memories: list[Memory]) -> None:
        line, last_members = self._line(job), self._members.get(job, ())
        witnesses = [
            memory.name
            for memory in memories
            if memory.name in last_members
            and (memory.name, memory.incarnation) not in self._expelled
            for state in (memory.state, memory.prepared)
            if state and state.step > start[1] and line.lineages.get(state.step) == state.lineage
        ]
        require(
            not witnesses,
            "committed steps are lost that somebody remembers",
            f"generation {generation} starts from {start}, not from step {line.last}",
            witnesses,
        )
        line.lost += line.last - start[1]
        line.last = start[1]
        self._given_up |= {known for step, known in line.lineages.items() if step > start[1]}
        self._given_up |= {one.prepared.lineage for one in memories if one.prepared is not None}
        line.lineages = {step: known for step, known in line.lineages.items() if step <= start[1]}

    def _take_in(self, line: Line, start: Key, memories: list[Memory]) -> None:
        """A step that was only prepared is committed by the decision."""
        line.last = max(line.last, start[1])
        for memory in memories:
            for state in (memory.state, memory.prepared):
                if state is not None and state.key == start:
                    line.lineages.setdefault(start[1], state.lineage)

    def assigned(self, assign: m.Assign) -> None:
        """A worker has been told what its generation starts from."""
        decided = self._starts.get((assign.job, assign.generation))
        told = (assign.held_generation, assign.held_step)
        require(decided == told, "a worker is told of another start than was decided", told)

    # --- workers ---------------------------------------------------------------------------

    def took_part(self, assign: m.Assign, incarnation: int) -> None:
        """A worker knows that all ranks of a generation have joined with the same state."""
        self._took_part.add((assign.job, assign.generation, incarnation))

    def copies(self, assign: m.Assign, incarnation: int, own: State | None) -> None:
        """A worker is about to copy the state that its generation starts from."""
        key = (assign.job, assign.held_generation, incarnation)
        require(
            own is None or key not in self._took_part,
            "a survivor copies state from another",
            assign.roster[assign.rank].name,
            own,
            f"generation {assign.generation} starts from step {assign.held_step}",
        )

    def adopted(self, assign: m.Assign, state: State) -> None:
        """A worker has the state that its generation starts from."""
        require(
            state.key == (assign.held_generation, assign.held_step),
            "a worker starts from another state than it was told",
            assign,
            state,
        )
        self._in_line(state, "starts from")

    def removed(self, states: Iterable[State]) -> None:
        """Retention has removed these checkpoints."""
        for state in states:
            require(
                state.lineage not in self._given_up,
                "a checkpoint is deleted of a branch that the job has left",
                state.key,
            )

    def is_given_up(self, state: State) -> bool:
        """A worker that nobody waited for finishes what it had begun, of steps that are lost."""
        return state.lineage in self._given_up

    def committed(self, state: State) -> None:
        """A rank has committed a step."""
        self._in_line(state, "commits")
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
