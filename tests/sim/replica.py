"""The training state of a simulated worker, which records its own history, and the worker's disk.

The content after step s depends on the sums of the rows of all steps, as the ring has added them; a
repeated step gives the same result.  The lineage also contains the generation that committed each
step.  This lets the oracle detect a state that skipped, repeated or mixed steps, or that omitted a
row or used one twice.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dtd.checkpoint.format import checkpoint_name
from dtd.checkpoint.retention import Rules, retain
from dtd.cluster.generation.branches import Branch
from dtd.engine.shards import ShardSet
from dtd.wire import messages as m
from tests.sim import rows, shards
from tests.sim.rows import Data
from tests.sim.shards import Atoms

ENTRIES = 40
"""Number of entries of a state that can differ individually, like tensors."""
KEPT = 3
DATA = Data(length=50, batch=16)
Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A committed state of a job.

    Attributes:
        job: id of the job.
        generation: the generation that committed its last step; 0 if nothing is committed.
        step: number of committed steps.
        content: hash over all steps.
        lineage: hash over all steps and the generations that committed them.
        data: the data on which it is trained.
        corrupt: its content was changed by flipped bits; known only to the oracle.
        changed: the entries that were changed in this way.
        atoms: this worker's atoms of a sharded state (`tests.sim.shards`).
    """

    job: str
    generation: int
    step: int
    content: str
    lineage: str
    data: Data = DATA
    corrupt: bool = False
    changed: frozenset[int] = frozenset()
    atoms: Atoms = ()

    def hashes(self) -> list[bytes]:
        """A short hash of every entry; only changed entries have unexpected hashes."""
        honest = expected(self.job, self.step, self.data)
        return [
            _hash(self.content if entry in self.changed else honest, str(entry)).encode()
            for entry in range(ENTRIES)
        ]

    @property
    def key(self) -> Key:
        """Its key: the generation that committed the last step, and the number of steps."""
        return self.generation, self.step

    @property
    def part(self) -> ShardSet:
        """Which shards of it this worker holds."""
        return shards.part_of(self.atoms)

    def held(self, where: str) -> m.Held:
        """The state as a worker reports it."""
        return m.Held(
            job=self.job,
            generation=self.generation,
            step=self.step,
            digest=self.content if where == "checkpoint" else "",
            where=where,
            part=tuple(self.part.to_wire()) if self.atoms else (),
        )


def fresh(job: str, data: Data = DATA, *, sharded: bool = False) -> State:
    """The state before the first step."""
    content = expected(job, 0, data)
    return State(
        job=job,
        generation=0,
        step=0,
        content=content,
        lineage="",
        data=data,
        atoms=shards.whole(content) if sharded else (),
    )


def after_commit(state: State, generation: int, total: int, *, steps: int = 1) -> State:
    """The state after one more round, in which the ring's sum of the rows was `total`."""
    for step in range(state.step, state.step + steps):
        assert rows.follows(state.data, step), "a step does not begin where the last one ended"
    return replace(
        state,
        generation=generation,
        step=state.step + steps,
        content=_hash(state.content, str(total)),
        lineage=_hash(state.lineage, f"{generation}:{state.step}"),
        atoms=shards.changed(state.atoms, lambda content: _hash(content, str(total))),
    )


def corrupted(state: State, by: str, entry: int | None = None) -> State:
    """The state after bits have flipped in this entry, or in one derived from `by`."""
    content = _hash(state.content, f"flipped by {by}")
    hit = int(content, 16) % ENTRIES if entry is None else entry
    return replace(state, content=content, corrupt=True, changed=state.changed | {hit})


def damaged(state: State, by: str) -> State:
    """The state after bits have flipped in one of the shards that this worker holds of it."""
    held = [index for index, content in enumerate(state.atoms) if content]
    if not held:
        return state
    content = _hash(state.content, f"damaged by {by}")
    hit = held[int(content, 16) % len(held)]
    return replace(state, atoms=(*state.atoms[:hit], content, *state.atoms[hit + 1 :]))


@cache
def expected(job: str, step: int, data: Data = DATA) -> str:
    """The content of a correct state after this number of steps."""
    if step == 0:
        return _hash(job, "initial")
    begin = rows.round_begin(data, step)
    total = sum(rows.expected(data, one) for one in range(begin, step))
    return _hash(expected(job, begin, data), str(total))


def _hash(before: str, then: str) -> str:
    return hashlib.blake2b(f"{before}|{then}".encode(), digest_size=16).hexdigest()


class Disk:
    """A worker's disk with its newest published checkpoints; it outlives the process.

    The product's own retention, to which each checkpoint appears as a directory, decides which
    ones are kept.

    Args:
        directory: parent of these directories.

    Attributes:
        full: nothing can be written.
    """

    def __init__(self, directory: Path) -> None:
        self.full = False
        self._directory = directory
        self._published: dict[str, list[State]] = {}
        self._spoilt: list[State] = []

    def publish(
        self, state: State, branches: Sequence[Branch]
    ) -> tuple[list[State], tuple[str, ...]]:
        """Store a checkpoint; returns those removed for it, and the names of all that are kept."""
        known = self._published.setdefault(state.job, [])
        earlier = self.find(state.job, state.key)
        if earlier is None:
            known.append(state)
        elif state.atoms:
            atoms = shards.joined(earlier.atoms, state.atoms)
            known[known.index(earlier)] = replace(state, atoms=atoms)
        known.sort(key=lambda one: one.key)
        self._path(state).mkdir(parents=True, exist_ok=True)
        rules = Rules(keep=KEPT)
        kept = retain(self._path(state).parent, rules, now_unix_s=0.0, branches=branches)
        gone = [one for one in known if checkpoint_name(*one.key) not in kept]
        self._published[state.job] = [one for one in known if one not in gone]
        return gone, kept

    def _path(self, state: State) -> Path:
        return self._directory / state.job / checkpoint_name(*state.key)

    def spoil(self) -> None:
        """Flip bits in the newest checkpoint of every job, which is ignored from then on."""
        for known in self._published.values():
            self._spoilt += known[-1:]
            for one in known[-1:]:
                shutil.rmtree(self._path(one))
            del known[-1:]

    def is_spoilt(self, job: str, key: Key) -> bool:
        """Whether this checkpoint was stored here and is damaged."""
        return any((one.job, one.key) == (job, key) for one in self._spoilt)

    def states(self, job: str) -> list[State]:
        """All checkpoints of a job, the newest first."""
        return self._published.get(job, [])[::-1]

    def newest(self, job: str) -> State | None:
        """The newest checkpoint of a job."""
        known = self._published.get(job)
        return known[-1] if known else None

    def find(self, job: str, key: Key) -> State | None:
        """The checkpoint with this key."""
        return next((one for one in self._published.get(job, []) if one.key == key), None)
