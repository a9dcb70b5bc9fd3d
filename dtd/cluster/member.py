"""A worker's side of the membership, between the coordinator and the training thread.

    idle -PREPARE-> warming -(trainer warm)-> ready -ASSIGN-> forming -(trainer runs)-> running
      ^                                        ^                                          |
      |                                        +--- frozen <-(trainer froze)--------------+
      +---- restart <-RELEASE-                 +--- finished <-(trainer finished)---------+

Pure: events in, effects out.  Both are messages where there is one: an event is a message of the
coordinator, or a report of this process, and a message of the coordinator that is to be carried out
is an effect.  The shell (`dtd.worker.daemon`) owns the control connection, the data server and the
training thread.  The connection may come and go at any time: what the coordinator must know is
repeated after every REGISTERED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dtd.cluster.transitions import MEMBER, MemberAction, MemberEvent, MemberState
from dtd.errors import ImpossibleTransition
from dtd.wire import messages as m

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOpened:
    """The coordinator answered HELLO."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """Most ranks hold another state than this one."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The administrator stops this worker."""

    reason: str


Event = m.Message | ControlOpened | Diverged | StopAsked


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send a message to the coordinator; lost when the connection is down, and repeated."""

    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakRing:
    """End the current ring at once; the training thread will report that it froze."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAtBoundary:
    """Raise the flag that ends the generation (or the job) after the current step."""

    stop: bool
    leave: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart in a clean interpreter; a process that was started by hand ends.

    `release`: the message that it follows; None if this process itself is the reason.
    """

    reason: str
    release: m.Release | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the process normally."""

    reason: str


Order = m.Prepare | m.Assign | m.Save | m.Probe | m.Signal
"""Messages of the coordinator that the shell carries out: warm up, form a ring, write the state,
call another worker's data port, send this process a signal."""

Effect = Tell | Order | BreakRing | EndAtBoundary | Restart | Exit

_REPEATED: Final = m.Warmed | m.Running | m.Frozen | m.Finished | m.Failed
"""Reports that follow REGISTERED: sent before, they would come without the WARMED that explains
them."""


class Member:
    """One worker's part in the membership.

    Args:
        register: its REGISTER message; job, generation and step are filled in.
        joins: the job of a process that was started by hand; None for a worker that takes any.

    Attributes:
        introducing: the coordinator has not answered on this connection yet.
    """

    def __init__(self, register: m.Register, joins: Mapping[str, Any] | None = None) -> None:
        self.state = MemberState.IDLE
        self.assign: m.Assign | None = None
        self.stopping = ""
        self.refused = ""
        self._register = register
        self._joins = joins
        self._prepare: m.Prepare | None = None
        self._warmed: m.Warmed | None = None
        self._report: m.Warmed | m.Frozen | m.Finished | None = None
        self._failed: m.Failed | None = None
        self._running: m.Running | None = None
        self._impossible = ""
        self.introducing = False
        self._on_event = self._event_table()

    def _event_table(self) -> dict[type, Callable[[Any], list[Effect]]]:
        return {
            ControlOpened: self._on_opened,
            m.Joined: self._on_joined,
            m.Registered: self._on_registered,
            m.Prepare: self._on_prepare,
            m.Assign: self._on_assign,
            m.Freeze: self._on_freeze,
            m.Save: self._on_save,
            m.Release: self._on_release,
            m.Signal: lambda order: [order],
            m.Probe: lambda order: [order],
            m.Warmed: self._on_warmed,
            m.Running: self._on_running,
            m.Frozen: self._on_frozen,
            m.Finished: self._on_finished,
            m.Failed: self._on_failed,
            m.Probed: lambda report: [Tell(message=report)],
            Diverged: self._on_diverged,
            StopAsked: self._on_stop_asked,
        }

    def handle(self, event: Event) -> list[Effect]:
        """Advance by one event.

        Raises:
            ImpossibleTransition: a report of the training thread cannot follow its last one.
        """
        on_event = self._on_event.get(type(event))
        effects = on_event(event) if on_event is not None else []
        if self.introducing:
            return [one for one in effects if not _is_repeated(one)]
        return effects

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

    def _on_opened(self, _event: ControlOpened) -> list[Effect]:
        self.introducing = True
        if self._joins is not None and not self._register.joined:
            return [Tell(message=m.JoinJob(spec=dict(self._joins)))]
        return [Tell(message=self._registration())]

    def _on_joined(self, message: m.Joined) -> list[Effect]:
        self._register = replace(self._register, joined=message.job)
        return [Tell(message=self._registration())]

    def _on_registered(self, message: m.Registered) -> list[Effect]:
        """Repeat reports that an earlier connection may have lost, but not acknowledged ones."""
        self.refused = message.refused
        self._register = replace(self._register, last_end="")
        self.introducing = False
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
        return [message]

    def _on_assign(self, message: m.Assign) -> list[Effect]:
        known = self.assign
        if known is not None and message.generation <= known.generation:
            return []
        if self._move(MemberEvent.ASSIGN) is MemberAction.IGNORE:
            return []
        self.assign, self._failed = message, None
        return [message]

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
        return [message]

    def _on_release(self, message: m.Release) -> list[Effect]:
        if self.stopping or message.state == "left":
            return [Exit(reason=message.reason)]
        idle = self._move(MemberEvent.RELEASE) is MemberAction.IGNORE
        if idle and not self._register.joined:
            return []
        return [Restart(reason=f"job {message.job} is {message.state}", release=message)]

    # --- this process ----------------------------------------------------------------------

    def _on_warmed(self, report: m.Warmed) -> list[Effect]:
        self._warmed = report
        return self._reports(MemberEvent.WARM, report)

    def _on_running(self, report: m.Running) -> list[Effect]:
        if not self._is_present(report.generation):
            return []
        self._move(MemberEvent.RUNNING)
        self._running = report if self.introducing else None
        return [Tell(message=report)]

    def _on_frozen(self, report: m.Frozen) -> list[Effect]:
        return (
            self._reports(MemberEvent.FROZE, report) if self._is_present(report.generation) else []
        )

    def _on_finished(self, report: m.Finished) -> list[Effect]:
        return self._reports(MemberEvent.FINISHED, report)

    def _on_failed(self, report: m.Failed) -> list[Effect]:
        self._failed = report
        return [Tell(message=report)]

    def _on_diverged(self, event: Diverged) -> list[Effect]:
        """This replica is in the minority: discard the process's state."""
        if self.assign is None or not self._is_present(event.generation):
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

    def _is_present(self, generation: int) -> bool:
        """Whether this is the newest generation: the training thread may report of an older one."""
        return self.assign is not None and generation == self.assign.generation


def _is_repeated(effect: Effect) -> bool:
    return isinstance(effect, Tell) and isinstance(effect.message, _REPEATED)
