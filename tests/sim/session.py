"""The session of a modelled trainer: its state, its prepared step and the job's settings.

The counterpart of `dtd.train.session`.  The product's own step protocol (`dtd.engine`) decides
which states may be reported, committed or taken over.  `Shell` is the trainer's interface to its
process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dtd.cluster import member
from dtd.cluster.generation.branches import Branch
from dtd.cluster.workers.progress import ProgressWatch
from dtd.engine.control_word import Flags
from dtd.engine.digests import DeferredDigest
from dtd.engine.rounds import Rounds
from dtd.engine.shares import DECIDE_EVERY_STEPS, UNKNOWN
from dtd.engine.step_protocol import StateKey, StepProtocol
from dtd.job.terms import terms_of
from dtd.strategy.codec.api import LocalState
from dtd.wire import messages as m
from tests.sim import reports, shards
from tests.sim.data_port import DataPort
from tests.sim.oracle import require
from tests.sim.phases import Phase
from tests.sim.replica import Disk, Key, State, after_commit, corrupted, damaged, fresh
from tests.sim.residuals import value, zero
from tests.sim.rows import Data, data_of
from tests.sim.surroundings import Surroundings
from tests.sim.thread import Busy

DRIFTING = 7
"""Entry of the state that the task changes outside dtd, differently on every rank."""
TAIL = 1
"""Number of elements of a step's last bucket, which is never empty."""
PIECE_S = 0.5
"""Duration of one piece of a digest, computed between two marks of progress."""


class Shell(Protocol):
    """A trainer's interface to its process."""

    name: str
    incarnation: int
    alive: bool
    disk: Disk
    data_port: DataPort
    surroundings: Surroundings
    fails_at_step: int | None

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, unless the process has died by then."""
        ...

    def feed(self, event: member.Event) -> None:
        """Pass an event to the member core."""
        ...

    def tell(self, message: m.Message) -> None:
        """Send a message to the coordinator, if it can be reached."""
        ...

    def reached(self, phase: Phase, *, rank: int, step: int) -> bool:
        """Report that the worker reaches a phase; False if a fault ended the process."""
        ...


@dataclass(slots=True, kw_only=True)
class JobSession:
    """One job in one process.

    Attributes:
        engine: the step protocol, which determines the live and the prepared state.
        deferred: a digest that the next control word carries.
        state: content of the memory; the live state, if there is one.
        prepared: the state after the current step, once all its buckets are averaged.
        agreed: the newest state whose digest all ranks have.
        pending: the state whose digest is deferred.
        saving: states that are being written to disk.
        branches: states on the job's abandoned branches.
        flags: requests to this rank.
        rounds: which steps are committed together.
        hands_on: whether leaving ranks hand on their residuals.
        measures: whether rows are divided by speed.
        costs: of a row on each rank, by which rows are divided now; empty: equally.
        residual: the part of its shares that this rank has not sent.
        watch: watches the thread's progress.
        writes: whether this rank writes checkpoints in its generation.
        mirrors: how many more members hold each shard of the state; None if it is not sharded.
        lacks_part: memory has only the common part of a state of which it is to get shards.
        drifts_at: from this step on, the ranks' states differ; 0 for never.
        origin: the job whose weights it begins with; empty for none.
    """

    shell: Shell
    job: str
    steps: int
    buckets: list[int]
    data: Data
    checkpoint_every: int
    evaluate_every: int
    copies: int
    watch: ProgressWatch
    rounds: Rounds = field(default_factory=Rounds)
    hands_on: bool = False
    measures: bool = False
    costs: tuple[int, ...] = ()
    residual: LocalState = field(default_factory=zero)
    drifts_at: int = 0
    mirrors: int | None = None
    lacks_part: bool = False
    origin: str = ""
    writes: bool = False
    engine: StepProtocol = field(default_factory=StepProtocol)
    deferred: DeferredDigest = field(default_factory=DeferredDigest)
    state: State | None = None
    prepared: State | None = None
    agreed: State | None = None
    pending: State | None = None
    saving: list[State] = field(default_factory=list)
    branches: tuple[Branch, ...] = ()
    flags: Flags = field(default_factory=Flags)

    # --- the state -------------------------------------------------------------------------

    def held(self) -> m.Held:
        """The state that this worker can start from: in memory, or else its newest checkpoint."""
        if self.engine.live is not None:
            return self.live.held("memory")
        saved, begun = self.shell.disk.newest(self.job), self.begun()
        if saved is None and begun is not None:
            return replace(begun, job=self.origin, atoms=()).held("checkpoint")
        fresh_state = fresh(self.job, self.data)
        return saved.held("checkpoint") if saved is not None else fresh_state.held("none")

    def begun(self) -> State | None:
        """The state that begins with another job's weights, if they are on this disk.

        It has the generation of that job's checkpoint, and no steps.
        """
        weights = self.shell.disk.newest(self.origin) if self.origin else None
        if weights is None or not weights.part.is_whole:
            return None
        unborn = fresh(self.job, self.data, sharded=self.mirrors is not None)
        return replace(unborn, generation=weights.generation)

    def saved(self) -> tuple[m.Held, ...]:
        """Its parts of checkpoints of a sharded job, besides that of `held`."""
        if self.mirrors is None:
            return ()
        first = self.held()
        known = (one.held("checkpoint") for one in self.shell.disk.states(self.job))
        return tuple(one for one in known if one != first)

    def prepared_key(self) -> Key:
        """Key of the state it would hold after committing its prepared step."""
        held = self.held()
        return self.engine.prepared or (held.generation, held.step)

    @property
    def live(self) -> State:
        """The live state, which must exist."""
        live, state = self.engine.live, self.state
        require(state is not None and live == state.key, "memory holds another state", live, state)
        assert state is not None
        return state

    @property
    def round(self) -> range:
        """The steps that are computed next and committed together."""
        step = self.live.step
        return range(step, self.rounds.end(step, self.steps))

    def prepare(self, generation: int, total: int) -> None:
        """Prepare the current step: its buckets are averaged, and its rows sum up to `total`."""
        self.engine.prepare()
        self.prepared = after_commit(self.live, generation, total, steps=len(self.round))

    def commit(self) -> State:
        """Commit the prepared step."""
        assert self.prepared is not None, "a step is committed that was not prepared"
        state, self.prepared = self.prepared, None
        key = self.engine.commit()
        require(key == state.key, "a step is committed under another name", key, state.key)
        self.residual.commit()
        residuals = self.shell.surroundings.oracle.residuals
        residuals.committed(self.shell.name, state, value(self.residual), self.costs)
        if 0 < self.drifts_at <= state.step:
            state = corrupted(state, self.shell.name, DRIFTING)
        self.state = state
        return state

    def discard(self) -> None:
        """Discard the current step."""
        if self.engine.discard():
            self.prepared = None
            self.residual.rollback()

    def adopt(self, state: State) -> None:
        """Replace the held state."""
        self.engine.replace()
        self.state, self.prepared = state, None
        self.residual.reset()
        self.drop()
        self.engine.replaced(StateKey(*state.key))

    def defer(self, state: State, cut_into: int) -> None:
        """Compare the digest of a state with the next control word, and save the state then."""
        self.pending, key = state, StateKey(*state.key)
        if self.mirrors is None:
            self.deferred.take(state.step, bytes.fromhex(state.content), key=key)
        else:
            hashed = shards.digests(state.atoms, state.content, cut_into)
            self.deferred.take(state.step, hashed, key=key)

    def drop(self) -> None:
        """Drop the deferred digest, on which the ranks will not agree."""
        self.pending = None
        self.deferred.drop()

    def checkpoint_due(self, step: int) -> bool:
        """Whether it is due after this number of steps."""
        return self.checkpoint_every > 0 and self.rounds.crossed(step, self.checkpoint_every)

    def evaluation_due(self, step: int) -> bool:
        """Whether it is due after this number of steps."""
        return self.evaluate_every > 0 and self.rounds.crossed(step, self.evaluate_every)

    def forget(self) -> None:
        """Discard the state in memory, since no majority can tell which one is right."""
        self.discard()
        self.engine.forget()
        self.shell.surroundings.oracle.residuals.forgets(self.shell.name, self.job)
        self.state = self.prepared = None
        self.drop()
        for state in list(self.saving):
            self._publish(state)

    def corrupt(self) -> None:
        """Flip bits in memory, unnoticed."""
        if self.state is not None:
            self.state = corrupted(self.state, self.shell.name)
            self.prepared = corrupted(self.prepared, self.shell.name) if self.prepared else None

    def damage(self) -> None:
        """Flip bits of one shard in memory, unnoticed, if any is held."""
        oracle = self.shell.surroundings.oracle
        if self.state is None or not self.state.part or self.mirrors is None:
            return
        before, self.state = self.state, damaged(self.state, self.shell.name)
        self.prepared = damaged(self.prepared, self.shell.name) if self.prepared else None
        oracle.causes.flipped = True
        oracle.shards.damages(self.shell.name, before, self.state)

    # --- the disk --------------------------------------------------------------------------

    def save_soon(self, state: State) -> None:
        """Begin to write a checkpoint while training continues."""
        self.saving.append(state)
        self.shell.after(self.draw("checkpoint_s"), lambda: self._publish(state))

    def save(self, state: State) -> None:
        """Publish a checkpoint that was written while training waited."""
        self.saving.append(state)
        self._publish(state)

    def _publish(self, state: State) -> None:
        """Publish a checkpoint and report it, unless that was done before."""
        if state not in self.saving:
            return
        self.saving.remove(state)
        if not self.shell.reached(Phase.CHECKPOINT, rank=-1, step=state.step):
            return
        if self.shell.disk.full:
            self.shell.tell(reports.not_saved(state, "no space left on its disk"))
            return
        gone, kept = self.shell.disk.publish(state, self.branches)
        self.shell.surroundings.oracle.lineage.removed(gone)
        self.shell.surroundings.oracle.keeping.published(self.shell.name, state)
        self.shell.tell(reports.saved(self.shell.disk.find(state.job, state.key) or state, kept))

    # --- time ------------------------------------------------------------------------------

    def draw(self, what: str) -> float:
        """A random duration of a kind of work."""
        surroundings = self.shell.surroundings
        return surroundings.draw(getattr(surroundings.pace, what))

    @property
    def cost(self) -> int:
        """What this rank has measured of its speed, which changes every few steps."""
        rng = random.Random(f"{self.shell.name} {self.shell.incarnation} {self.live.step // 10}")
        return rng.choice((UNKNOWN, 100, 100, 110, 200, 400))

    def divides(self) -> bool | None:
        """Whether the division of rows is reconsidered before the next step."""
        due = self.rounds.crossed(self.live.step, DECIDE_EVERY_STEPS)
        return due if self.measures else None

    def digest(self) -> Iterator[Busy]:
        """Hash or copy the state piece by piece."""
        if self.shell.surroundings.pace.digest_s[1]:
            left_s = self.draw("digest_s")
            while left_s > 0:
                yield Busy(min(left_s, PIECE_S))
                left_s -= PIECE_S

    def busy(self, what: str) -> Busy:
        """A computation of random duration."""
        return Busy(self.draw(what))


def begin(shell: Shell, job: str, spec: Mapping[str, Any], origin: str = "") -> JobSession:
    """The session of a job that this process is told to prepare for."""
    model, terms = spec["model"], terms_of(spec)
    shell.surroundings.oracle.residuals.begins(shell.name, job)
    return JobSession(
        shell=shell,
        job=job,
        steps=int(model["steps"]),
        buckets=[*(int(elements) for elements in model["buckets"]), TAIL],
        data=data_of(spec),
        rounds=Rounds.of(terms.strategy),
        hands_on=bool(model["hands_on"]),
        measures=spec["elastic"]["shares"] == "measured",
        checkpoint_every=int(model["checkpoint_every"]),
        evaluate_every=int(model["evaluate_every"]),
        drifts_at=int(model["drifts_at"]),
        mirrors=terms.mirrors if terms.sharded else None,
        origin=origin,
        copies=int(spec["checkpoint"]["copies"]),
        watch=ProgressWatch(
            first_stall_limit_s=float(spec["elastic"]["warmup_timeout_s"]),
            least_stall_limit_s=float(spec["elastic"]["stall_timeout_s"]),
            busy_limit_s=float(spec["elastic"]["busy_timeout_s"]),
        ),
    )
