"""A worker's side of the membership, between the coordinator and the training thread.

    idle -PREPARE-> warming -(trainer warm)-> ready -ASSIGN-> forming -(trainer runs)-> running
      ^                                        ^                                          |
      |                                        +--- frozen <-(trainer froze)--------------+
      +---- restart <-RELEASE-                 +--- finished <-(trainer finished)---------+

Pure: events and a clock value in, effects out.  The shell (`dtd.worker.daemon`) owns the control
connection, the data server and the training thread.  The connection may come and go at any time:
what the coordinator must know is repeated after every REGISTERED.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dtd.cluster.transitions import MEMBER, MemberAction, MemberEvent, MemberState
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m


class Member:
    """One worker's part in the membership.

    Args:
        register: its REGISTER message; job, generation and step are filled in.
    """

    def __init__(self, register: m.Register) -> None:
        self.state = MemberState.IDLE
        self.assign: m.Assign | None = None
        self.stopping = ""
        self.refused = ""
        self._register = register
        self._prepare: m.Prepare | None = None
        self._warmed: m.Warmed | None = None
        self._report: m.Warmed | m.Frozen | m.Finished | None = None
        self._failed: m.Failed | None = None
        self._running: m.Running | None = None
        self._impossible = ""
        self._introducing = False

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Advance by one event; `now` is unused."""
        del now
        if isinstance(event, ControlOpened):
            self._introducing = True
            return [Tell(message=self._registration())]
        if isinstance(event, FromCoordinator):
            return self._on_message(event.message)
        effects = self._on_own(event)
        return [one for one in effects if not (self._introducing and _is_said_again(one))]

    def _on_own(self, event: OwnEvent) -> list[Effect]:
        """Handle an event of this process."""
        if isinstance(event, TrainerWarm):
            self._warmed = event.warmed
            return self._reports(MemberEvent.WARM, event.warmed)
        if isinstance(event, TrainerRunning):
            return self._on_trainer_running(event)
        if isinstance(event, TrainerFroze):
            return self._on_trainer_froze(event)
        if isinstance(event, TrainerFinished):
            return self._reports(MemberEvent.FINISHED, event.finished)
        if isinstance(event, TrainerFailed):
            self._failed = event.failed
            return [Tell(message=event.failed)]
        if isinstance(event, TrainerDiverged):
            return self._on_trainer_diverged(event)
        if isinstance(event, ProbeAnswered):
            return [Tell(message=event.probed)]
        return self._on_stop_asked(event)

    def explain(self) -> str:
        """Return what this worker waits for, in words; empty while it trains."""
        if self.refused and self.state is MemberState.IDLE:
            return f"is refused: {self.refused}"
        return {
            MemberState.IDLE: "waits for a job",
            MemberState.WARMING: "imports the task, builds the model, opens the data",
            MemberState.READY: "waits to be assigned to a generation",
            MemberState.FORMING: "connects to its neighbours and takes over the state",
            MemberState.RUNNING: "",
            MemberState.FROZEN: "waits for the next generation",
            MemberState.FINISHED: "waits for the other workers to finish",
        }[self.state]

    def check_invariants(self) -> None:
        """Raise AssertionError when it is inconsistent."""
        assert not self._impossible, self._impossible
        in_generation = (MemberState.FORMING, MemberState.RUNNING)
        assert self.state not in in_generation or self.assign is not None
        assert self.state is MemberState.IDLE or self._prepare is not None

    def _move(self, event: MemberEvent) -> MemberAction:
        """Take a transition of this worker; returns its action.

        Raises:
            ImpossibleTransition: that cannot happen in its state.
        """
        try:
            self.state, action = MEMBER.take(self.state, event)
        except ImpossibleTransition as error:
            self._impossible = error.message
            raise
        return action

    def _reports(
        self, event: MemberEvent, report: m.Warmed | m.Frozen | m.Finished
    ) -> list[Effect]:
        """The training thread has reached a state; report it to the coordinator, and repeat it."""
        self._move(event)
        self._report = report
        return [Tell(message=report)]

    # --- the coordinator -------------------------------------------------------------------

    def _registration(self) -> m.Register:
        generation, prepare = self.assign, self._prepare
        if generation is None or prepare is None:
            return self._register
        return replace(
            self._register,
            job=generation.job,
            generation=generation.generation,
            roster_id=generation.roster_id,
            phase=self.state.value,
            identity=prepare.identity,
            roster=generation.roster,
            held_generation=generation.held_generation,
            held_step=generation.held_step,
        )

    def _on_message(self, message: m.Message) -> list[Effect]:
        if isinstance(message, m.Registered):
            return self._on_registered(message)
        if isinstance(message, m.Prepare):
            return self._on_prepare(message)
        if isinstance(message, m.Assign):
            return self._on_assign(message)
        if isinstance(message, m.Freeze):
            return self._on_freeze(message)
        if isinstance(message, m.Save):
            return self._on_save(message)
        if isinstance(message, m.Release):
            return self._on_release(message)
        if isinstance(message, m.Signal):
            return [Raise(signal=message.signal)]
        if isinstance(message, m.Probe):
            return [ProbePeer(probe=message)]
        return []

    def _on_registered(self, message: m.Registered) -> list[Effect]:
        """Repeat reports that an earlier connection may have lost, but not acknowledged ones."""
        self.refused = message.refused
        self._register = replace(self._register, last_end="")
        self._introducing = False
        effects: list[Effect] = []
        if self._warmed is not None and self.assign is not None:
            effects.append(Tell(message=self._warmed))
        if self._running is not None and self.state is MemberState.RUNNING:
            effects.append(Tell(message=self._running))
        if self._failed is not None:
            effects.append(Tell(message=self._failed))
        trains = self.state in (MemberState.FORMING, MemberState.RUNNING)
        if self._report is not None and not trains:
            effects.append(Tell(message=self._report))
        if self.stopping:
            effects.append(Tell(message=m.Leave(reason=self.stopping)))
        return effects

    def _on_prepare(self, message: m.Prepare) -> list[Effect]:
        known = self._prepare
        if known is not None and (known.job, known.identity) == (message.job, message.identity):
            # It has said so before, when the coordinator had not yet given it to this job again.
            again = self.state is MemberState.READY and self._report is not None
            return [Tell(message=self._report)] if again and self._report is not None else []
        if self._move(MemberEvent.PREPARE) is MemberAction.START_AFRESH:
            return [Restart(reason=f"job {message.job} begins, this process served another")]
        self._prepare = message
        return [WarmUp(prepare=message)]

    def _on_assign(self, message: m.Assign) -> list[Effect]:
        known = self.assign
        if known is not None and message.generation <= known.generation:
            return []
        if self._move(MemberEvent.ASSIGN) is MemberAction.IGNORE:
            return []
        self.assign, self._failed = message, None
        return [FormRing(assign=message)]

    def _on_freeze(self, message: m.Freeze) -> list[Effect]:
        if self.assign is None or message.generation != self.assign.generation:
            return []
        if self._move(MemberEvent.FREEZE) is MemberAction.REPORT_AGAIN:
            assert self._report is not None, "it has left a generation and has not reported it"
            return [Tell(message=self._report)]
        if message.at_boundary:
            leave = message.leave or bool(self.stopping)
            return [EndAtBoundary(stop=message.stop, leave=leave)]
        return [BreakRing(reason=message.reason)]

    def _on_save(self, message: m.Save) -> list[Effect]:
        if self.assign is None or self.assign.job != message.job:
            return []
        if self._move(MemberEvent.SAVE) is MemberAction.IGNORE:
            return []
        return [SaveState(save=message)]

    def _on_release(self, message: m.Release) -> list[Effect]:
        if self.stopping or message.state == "left":
            return [Exit(reason=message.reason)]
        if self._move(MemberEvent.RELEASE) is MemberAction.IGNORE:
            return []
        return [Restart(reason=f"job {message.job} is {message.state}")]

    # --- the trainer -----------------------------------------------------------------------

    def _on_trainer_running(self, event: TrainerRunning) -> list[Effect]:
        if self.assign is None or event.generation != self.assign.generation:
            return []
        self._move(MemberEvent.RUNNING)
        running = m.Running(job=self.assign.job, generation=event.generation, step=event.step)
        self._running = running if self._introducing else None
        return [Tell(message=running)]

    def _on_trainer_froze(self, event: TrainerFroze) -> list[Effect]:
        if self.assign is None or event.generation != self.assign.generation:
            return []
        frozen = m.Frozen(
            job=self.assign.job,
            generation=event.generation,
            roster_id=self.assign.roster_id,
            prepared_generation=event.prepared_generation,
            prepared_step=event.prepared_step,
            held=(event.held, *event.saved)[: m.MAX_HELD],
            suspect=event.suspect,
            evidence=event.evidence,
            reason=event.reason,
            diverged_step=event.diverged_step,
            differs=event.differs,
        )
        return self._reports(MemberEvent.FROZE, frozen)

    def _on_trainer_diverged(self, event: TrainerDiverged) -> list[Effect]:
        """This replica is in the minority: discard the process's state."""
        if self.assign is None or event.generation != self.assign.generation:
            return []
        self._move(MemberEvent.DIVERGED)
        notice = m.Notice(job=self.assign.job, event="replicas_diverged", message=event.reason)
        return [Tell(message=notice), Restart(reason=event.reason)]

    def _on_stop_asked(self, event: StopAsked) -> list[Effect]:
        leave = Tell(message=m.Leave(reason=event.reason))
        if self._move(MemberEvent.STOP_ASKED) is MemberAction.EXIT:
            return [leave, Exit(reason=event.reason)]
        self.stopping = event.reason
        return [leave]


def _is_said_again(effect: Effect) -> bool:
    """It follows REGISTERED: said before, it would come without the WARMED that explains it."""
    said_again = m.Warmed | m.Running | m.Frozen | m.Finished | m.Failed
    return isinstance(effect, Tell) and isinstance(effect.message, said_again)


# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOpened:
    """The coordinator answered HELLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FromCoordinator:
    """A message on the control connection."""

    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerWarm:
    """Model and data are ready."""

    warmed: m.Warmed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRunning:
    """The state is agreed with all ranks, and the first step begins."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFroze:
    """The trainer has left the generation with this state; the fields are those of FROZEN.

    `saved`: in a sharded job, its parts of checkpoints on disk, the newest first.
    """

    generation: int
    held: m.Held
    prepared_generation: int
    prepared_step: int
    suspect: str
    evidence: str
    reason: str
    diverged_step: int = 0
    differs: str = ""
    saved: tuple[m.Held, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerDiverged:
    """Most ranks hold a different state."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswered:
    """The result of a PROBE."""

    probed: m.Probed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFinished:
    """The trainer has completed the last step, or the last one before a stop."""

    finished: m.Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFailed:
    """The job's own code, data or numbers failed."""

    failed: m.Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The administrator stops this worker."""

    reason: str


OwnEvent = (
    TrainerWarm
    | TrainerRunning
    | TrainerFroze
    | TrainerDiverged
    | ProbeAnswered
    | TrainerFinished
    | TrainerFailed
    | StopAsked
)
"""Events of the worker's own process."""

Event = ControlOpened | FromCoordinator | OwnEvent


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send a message to the coordinator; lost when the connection is down, and repeated."""

    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Start the training thread."""

    prepare: m.Prepare


@dataclass(frozen=True, slots=True, kw_only=True)
class FormRing:
    """Connect to the neighbours and let the trainer adopt the state and run."""

    assign: m.Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakRing:
    """End the current ring at once; the trainer will report that it froze."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAtBoundary:
    """Raise the flag that ends the generation (or the job) after the current step."""

    stop: bool
    leave: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState:
    """Let the trainer write its state: no generation is running."""

    save: m.Save


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePeer:
    """Try to open a connection to another worker's data port."""

    probe: m.Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """Send this process a signal: KILL, TERM or STOP."""

    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart in a clean interpreter."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the process normally."""

    reason: str


Effect = (
    Tell
    | WarmUp
    | FormRing
    | BreakRing
    | EndAtBoundary
    | SaveState
    | ProbePeer
    | Raise
    | Restart
    | Exit
)
