"""What a simulated worker trains: a state that remembers how it came about, and a disk to keep it.

The content after step s depends on s alone, as it does in real training where a step that is redone
is redone exactly; the lineage also remembers in which generation each step was committed.  So the
oracle can tell a state that skipped, repeated or mixed steps from an honest one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

from dtd.wire import messages as m

STATE_BYTES = 400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A committed state of a job.

    Attributes:
        job: whose state.
        generation: the one that committed its last step; 0 when nothing is committed.
        step: number of committed steps.
        content: hash over all steps.
        lineage: hash over all steps and the generations that committed them.
    """

    job: str
    generation: int
    step: int
    content: str
    lineage: str

    @property
    def key(self) -> tuple[int, int]:
        """What states are ordered by."""
        return self.generation, self.step

    def held(self, where: str) -> m.Held:
        """The state as a worker reports it."""
        return m.Held(
            job=self.job,
            generation=self.generation,
            step=self.step,
            digest=self.content,
            where=where,
        )


def fresh(job: str) -> State:
    """The state before the first step."""
    return State(job=job, generation=0, step=0, content=expected(job, 0), lineage="")


def after_commit(state: State, generation: int) -> State:
    """The state after one more step."""
    return State(
        job=state.job,
        generation=generation,
        step=state.step + 1,
        content=_hash(state.content, str(state.step)),
        lineage=_hash(state.lineage, f"{generation}:{state.step}"),
    )


@cache
def expected(job: str, step: int) -> str:
    """The content of an honest state after so many steps."""
    return _hash(job, "initial") if step == 0 else _hash(expected(job, step - 1), str(step - 1))


def _hash(before: str, then: str) -> str:
    return hashlib.blake2b(f"{before}|{then}".encode(), digest_size=16).hexdigest()


class Disk:
    """A worker's disk: the checkpoints that were published; outlives the process."""

    def __init__(self) -> None:
        self._published: dict[str, State] = {}

    def publish(self, state: State) -> None:
        """Keep a checkpoint; the newest of each job stays."""
        known = self._published.get(state.job)
        if known is None or state.key > known.key:
            self._published[state.job] = state

    def newest(self, job: str) -> State | None:
        """The newest checkpoint of a job."""
        return self._published.get(job)
