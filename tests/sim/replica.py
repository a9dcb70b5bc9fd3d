"""What a simulated worker trains: a state that remembers how it came about, and a disk to keep it.

The content after step s is what the rows of all steps sum up to, as the ring has added them; a step
that is redone is redone exactly.  The lineage also remembers in which generation each step was
committed.  So the oracle can tell a state that skipped, repeated or mixed steps, or that left out a
row or used one twice, from an honest one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dtd.core.data.ledger import Ledger
from dtd.core.membership.branches import Branch
from dtd.train.checkpoint.format import checkpoint_name
from dtd.train.checkpoint.retention import Rules, retain
from dtd.wire import messages as m
from tests.sim import rows
from tests.sim.rows import Data

ENTRIES = 40
"""Tensors of a state, as far as it matters which of them differ."""
KEPT = 3
DATA = Data(length=50, batch=16)
Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A committed state of a job.

    Attributes:
        job: whose state.
        generation: the one that committed its last step; 0 when nothing is committed.
        step: number of committed steps.
        content: hash over all steps.
        lineage: hash over all steps and the generations that committed them.
        data: what it is trained on.
        ledger: the account of its rows, as JSON.
        corrupt: its content was changed behind everybody's back; known to the oracle alone.
        changed: the entries that were changed so.
    """

    job: str
    generation: int
    step: int
    content: str
    lineage: str
    data: Data = DATA
    ledger: str = ""
    corrupt: bool = False
    changed: frozenset[int] = frozenset()

    def hashes(self) -> list[bytes]:
        """A short hash of every entry; those that nobody has changed are as they should be."""
        honest = expected(self.job, self.step, self.data)
        return [
            _hash(self.content if entry in self.changed else honest, str(entry)).encode()
            for entry in range(ENTRIES)
        ]

    @property
    def key(self) -> Key:
        """Its name: who committed the last step, and how many there are."""
        return self.generation, self.step

    def held(self, where: str) -> m.Held:
        """The state as a worker reports it."""
        return m.Held(
            job=self.job,
            generation=self.generation,
            step=self.step,
            digest=self.content if where == "checkpoint" else "",
            where=where,
        )


def fresh(job: str, data: Data = DATA) -> State:
    """The state before the first step."""
    ledger = json.dumps(Ledger(data.length).to_mapping())
    content = expected(job, 0, data)
    return State(
        job=job, generation=0, step=0, content=content, lineage="", data=data, ledger=ledger
    )


def after_commit(state: State, generation: int, total: int) -> State:
    """The state after one more step, of which the ring has summed up the rows to `total`."""
    ledger = Ledger.from_mapping(json.loads(state.ledger))
    epoch, places = rows.places(state.data, state.step, rank=0, world_size=1)
    ledger.commit(epoch, places)
    return replace(
        state,
        generation=generation,
        step=state.step + 1,
        content=_hash(state.content, str(total)),
        lineage=_hash(state.lineage, f"{generation}:{state.step}"),
        ledger=json.dumps(ledger.to_mapping()),
    )


def corrupted(state: State, by: str, entry: int | None = None) -> State:
    """The state after bits have flipped in it: in this entry, or in one that chance has chosen."""
    content = _hash(state.content, f"flipped by {by}")
    hit = int(content, 16) % ENTRIES if entry is None else entry
    return replace(state, content=content, corrupt=True, changed=state.changed | {hit})


@cache
def expected(job: str, step: int, data: Data = DATA) -> str:
    """The content of an honest state after so many steps."""
    if step == 0:
        return _hash(job, "initial")
    return _hash(expected(job, step - 1, data), str(rows.expected(data, step - 1)))


def _hash(before: str, then: str) -> str:
    return hashlib.blake2b(f"{before}|{then}".encode(), digest_size=16).hexdigest()


class Disk:
    """A worker's disk: the newest checkpoints that were published; outlives the process.

    Which ones stay is for the product's own retention to say: each has a directory.

    Args:
        directory: where these are made.

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
        """Keep a checkpoint; returns what goes for it, and the names of all that stay."""
        known = self._published.setdefault(state.job, [])
        if all(one.key != state.key for one in known):
            known.append(state)
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
        """Bits flip in the newest checkpoint of every job: it is passed over from now on."""
        for known in self._published.values():
            self._spoilt += known[-1:]
            for one in known[-1:]:
                shutil.rmtree(self._path(one))
            del known[-1:]

    def is_spoilt(self, job: str, key: Key) -> bool:
        """Whether this checkpoint was here and is damaged."""
        return any((one.job, one.key) == (job, key) for one in self._spoilt)

    def newest(self, job: str) -> State | None:
        """The newest checkpoint of a job."""
        known = self._published.get(job)
        return known[-1] if known else None

    def find(self, job: str, key: Key) -> State | None:
        """The checkpoint of this name."""
        return next((one for one in self._published.get(job, []) if one.key == key), None)
