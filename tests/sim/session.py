"""What a modelled trainer works with: its state, what it has prepared, and the job's settings.

The counterpart of `dtd.train.session`.  What may be named, committed or taken over is decided by
the product's own step protocol (`dtd.core.engine`).  `Shell` is what the trainer uses of its
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dtd.core.engine.control_word import Flags
from dtd.core.engine.deferred_digest import DeferredDigest
from dtd.core.engine.step_protocol import StateKey, StepProtocol
from dtd.core.membership import member
from dtd.core.membership.branches import Branch
from dtd.core.progress import ProgressWatch
from dtd.wire import messages as m
from tests.sim import reports
from tests.sim.data_port import DataPort
from tests.sim.oracle import require
from tests.sim.phases import Phase
from tests.sim.replica import Disk, Key, State, after_commit, corrupted, fresh
from tests.sim.rows import Data
from tests.sim.surroundings import Surroundings
from tests.sim.thread import Busy

DRIFTING = 7
"""Entry of the state that a task of its own changes, otherwise on every rank."""
TAIL = 1
"""Elements of a step's last bucket, which is never empty."""
PIECE_S = 0.5
"""How long the piece of a digest takes that is done between two marks of progress."""


class Shell(Protocol):
    """What a trainer uses of its process."""

    name: str
    incarnation: int
    disk: Disk
    data_port: DataPort
    surroundings: Surroundings
    fails_at_step: int | None

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later, unless the process has died by then."""
        ...

    def feed(self, event: member.Event) -> None:
        """Hand an event to the member core."""
        ...

    def tell(self, message: m.Message) -> None:
        """Send something to the coordinator, if it can be reached."""
        ...

    def reached(self, phase: Phase, *, rank: int, step: int) -> bool:
        """The worker comes to a phase; False when that was its end."""
        ...


@dataclass(slots=True, kw_only=True)
class Session:
    """One job in one process.

    Attributes:
        engine: says which state is live, and which is prepared.
        deferred: a digest that the next control word carries.
        state: what memory holds; of the live state, if there is one.
        prepared: what it becomes with the step under way, once all its buckets are averaged.
        agreed: the newest state whose digest all ranks have.
        compared: (generation, step, digest) that it has offered to the others last.
        pending: the state of the digest that is deferred.
        saving: states on their way to the disk.
        branches: what the job has left behind.
        flags: what is asked of this rank.
        watch: does the thread get on?
        writes: this rank writes checkpoints in its generation.
        drifts_at: from this step on every rank's state goes its own way; 0 for never.
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
    drifts_at: int = 0
    writes: bool = False
    engine: StepProtocol = field(default_factory=StepProtocol)
    deferred: DeferredDigest = field(default_factory=DeferredDigest)
    state: State | None = None
    prepared: State | None = None
    agreed: State | None = None
    compared: tuple[int, int, str] = (0, 0, "")
    pending: State | None = None
    saving: list[State] = field(default_factory=list)
    branches: tuple[Branch, ...] = ()
    flags: Flags = field(default_factory=Flags)

    # --- the state -------------------------------------------------------------------------

    def held(self) -> m.Held:
        """What this worker can start from: memory, else its newest checkpoint."""
        if self.engine.live is not None:
            return self.live.held("memory")
        saved = self.shell.disk.newest(self.job)
        fresh_state = fresh(self.job, self.data)
        return saved.held("checkpoint") if saved is not None else fresh_state.held("none")

    def prepared_key(self) -> Key:
        """What it would hold after committing what it has prepared."""
        held = self.held()
        return self.engine.prepared or (held.generation, held.step)

    @property
    def live(self) -> State:
        """The live state; there is one."""
        live, state = self.engine.live, self.state
        require(state is not None and live == state.key, "memory holds another state", live, state)
        assert state is not None
        return state

    def compared_in(self, generation: int) -> tuple[int, str]:
        """(step, digest) that it has offered to the others of a generation last."""
        known, step, digest = self.compared
        return (step, digest) if known == generation else (0, "")

    def prepare(self, generation: int, total: int) -> None:
        """All buckets of the step under way are averaged, its rows summed up to `total`."""
        self.engine.prepare()
        self.prepared = after_commit(self.live, generation, total)

    def commit(self) -> State:
        """The update is done."""
        assert self.prepared is not None, "a step is committed that was not prepared"
        state, self.prepared = self.prepared, None
        key = self.engine.commit()
        require(key == state.key, "a step is committed under another name", key, state.key)
        if 0 < self.drifts_at <= state.step:
            state = corrupted(state, self.shell.name, DRIFTING)
        self.state = state
        return state

    def discard(self) -> None:
        """Nothing of the step at hand happened."""
        if self.engine.discard():
            self.prepared = None

    def adopt(self, state: State) -> None:
        """Hold another state than before."""
        self.engine.replace()
        self.state, self.prepared = state, None
        self.drop()
        self.engine.replaced(StateKey(*state.key))

    def defer(self, state: State) -> None:
        """Have the digest of a state compared with the next word, and the state saved then."""
        self.pending = state
        digest = bytes.fromhex(state.content)
        self.deferred.take(state.step, digest, key=StateKey(*state.key))

    def drop(self) -> None:
        """What is deferred will not be agreed on."""
        self.pending = None
        self.deferred.drop()

    def checkpoint_due(self, step: int) -> bool:
        """By the step's number."""
        return self.checkpoint_every > 0 and step > 0 and step % self.checkpoint_every == 0

    def evaluation_due(self, step: int) -> bool:
        """By the step's number."""
        return self.evaluate_every > 0 and step > 0 and step % self.evaluate_every == 0

    def forget(self) -> None:
        """Hold only what is on disk: nobody can say whose memory is right."""
        self.discard()
        self.engine.forget()
        self.state = self.prepared = None
        self.drop()
        for state in list(self.saving):
            self._publish(state)

    def corrupt(self) -> None:
        """Bits flip in memory, and nobody notices."""
        if self.state is not None:
            self.state = corrupted(self.state, self.shell.name)
            self.prepared = corrupted(self.prepared, self.shell.name) if self.prepared else None

    # --- the disk --------------------------------------------------------------------------

    def save_soon(self, state: State) -> None:
        """Begin to write a checkpoint while training goes on."""
        self.saving.append(state)
        self.shell.after(self.draw("checkpoint_s"), lambda: self._publish(state))

    def save(self, state: State) -> None:
        """A checkpoint has been written while training waited."""
        self.saving.append(state)
        self._publish(state)

    def _publish(self, state: State) -> None:
        """Put a checkpoint in its place and say so, unless that was done before."""
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
        self.shell.surroundings.oracle.published(self.shell.name, state)
        self.shell.tell(reports.saved(state, kept))

    # --- time ------------------------------------------------------------------------------

    def draw(self, what: str) -> float:
        """How long something takes this time."""
        surroundings = self.shell.surroundings
        return surroundings.draw(getattr(surroundings.pace, what))

    def digest(self) -> Iterator[Busy]:
        """Hash or copy the state, a piece at a time."""
        if self.shell.surroundings.pace.digest_s[1]:
            left_s = self.draw("digest_s")
            while left_s > 0:
                yield Busy(min(left_s, PIECE_S))
                left_s -= PIECE_S

    def busy(self, what: str) -> Busy:
        """Do something for a while."""
        return Busy(self.draw(what))


def begin(shell: Shell, job: str, spec: Mapping[str, Any]) -> Session:
    """The session of a job that this process is told to prepare for."""
    model = spec["model"]
    return Session(
        shell=shell,
        job=job,
        steps=int(model["steps"]),
        buckets=[*(int(elements) for elements in model["buckets"]), TAIL],
        data=Data(length=int(model["rows"]), batch=int(model["batch"])),
        checkpoint_every=int(model["checkpoint_every"]),
        evaluate_every=int(model["evaluate_every"]),
        drifts_at=int(model["drifts_at"]),
        copies=int(spec["checkpoint"]["copies"]),
        watch=ProgressWatch(
            first_patience_s=float(spec["elastic"]["warmup_timeout_s"]),
            least_patience_s=float(spec["elastic"]["stall_timeout_s"]),
            busy_patience_s=float(spec["elastic"]["busy_timeout_s"]),
        ),
    )
