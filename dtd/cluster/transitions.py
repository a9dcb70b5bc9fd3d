"""All states, and four tables of the transitions between them.

    worker       as the coordinator sees it       WORKER      WorkerState, WorkerEvent
    generation   in which the job runs            GENERATION  GenerationState, GenerationEvent
    job          from submission to its end       JOB         JobState, JobEvent
    member       a worker, as it sees itself      MEMBER      MemberState, MemberEvent

A table maps (state, event) to (next state, action).  An action always accompanies its transition
and concerns only the record itself; `cluster.state` and `cluster.member` perform it.  States
are assigned only according to a table.  An event that a table does not list for a state is
impossible: it raises `ImpossibleTransition`, and the invariants are violated from then on.

`python -m scripts.gen_docs transitions` writes the tables into docs/transitions.md.  Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dtd.errors import ImpossibleTransition

State = TypeVar("State", bound=enum.StrEnum)
Event = TypeVar("Event", bound=enum.StrEnum)
Action = TypeVar("Action", bound=enum.StrEnum)


@dataclass(frozen=True, slots=True)
class Row(Generic[State, Event, Action]):
    """An event, the states in which it may happen, the next state and the action.

    Attributes:
        event: the event.
        states: the states in which it may happen.
        state: the next state; None: the state does not change.
        action: the action that accompanies the transition.
    """

    event: Event
    states: frozenset[State]
    state: State | None
    action: Action


class Table(Generic[State, Event, Action]):
    """All transitions of one kind of record.

    Args:
        of: name of that kind, for messages.
        rows: the transitions; no two of them have a state and event in common.
    """

    def __init__(self, of: str, rows: Iterable[Row[State, Event, Action]]) -> None:
        self.of = of
        self.rows: Final = tuple(rows)
        self._next: dict[tuple[State, Event], tuple[State, Action]] = {}
        for row in self.rows:
            for state in row.states:
                key = state, row.event
                assert key not in self._next, f"two rows of {of} for {key}"
                self._next[key] = row.state or state, row.action

    def take(self, state: State, event: Event) -> tuple[State, Action]:
        """The next state, and the action that accompanies the transition.

        Raises:
            ImpossibleTransition: the event cannot happen in this state.
        """
        found = self._next.get((state, event))
        if found is None:
            raise ImpossibleTransition(f"a {self.of} that is {state} cannot have: {event}")
        return found

    def __iter__(self) -> Iterator[tuple[tuple[State, Event], tuple[State, Action]]]:
        """Every (state, event) with its (next state, action)."""
        return iter(self._next.items())


# --- a worker, as the coordinator sees it --------------------------------------------------------


class WorkerState(enum.StrEnum):
    """State of a worker, as the coordinator sees it."""

    IDLE = "idle"
    WARMING = "warming"
    READY = "ready"
    FORMING = "forming"
    RUNNING = "running"
    DISCONNECTED = "away"
    FROZEN = "frozen"
    FINISHED = "finished"
    ISOLATED = "barred"
    INCOMPATIBLE = "refused"
    RELEASED = "released"
    LOST = "lost"


MEMBERS: Final = frozenset(
    {WorkerState.FORMING, WorkerState.RUNNING, WorkerState.DISCONNECTED, WorkerState.FINISHED}
)
"""States of a worker that takes part in the current generation."""
AVAILABLE: Final = frozenset({WorkerState.READY, WorkerState.FROZEN, WorkerState.ISOLATED})
"""States of a worker that may become a member of a new generation."""
GONE: Final = frozenset({WorkerState.RELEASED, WorkerState.LOST})


class WorkerEvent(enum.StrEnum):
    """Events of a worker, as the coordinator sees it."""

    PREPARED = "is told to warm up for the job"
    WARMED = "has warmed up"
    CAME_BACK = "registers with a generation that may be the newest, and continues training"
    CALLED_BACK = "registers with a generation that is over, and is asked to leave it"
    LEFT_OLD = "has left the generation with which it registered"
    INCOMPATIBLE = "runs a different release of dtd"
    LEFT_ALONE = "is excluded for a while, because the job failed on it"
    DISAGREES = "differs from the others in data, code, model or numerics"
    AGREES = "no longer differs from the others"
    NO_LINK = "has no working link to the others"
    LINK_WORKS = "all its links work again"
    ASSIGNED = "assigned to a generation"
    RUNS = "runs in the generation"
    FROZE = "left the generation before the end of the job"
    FINISHED = "has completed the job's last step"
    CLOSED = "its generation is over"
    DISCONNECTED = "lost its connection; its generation may still be running"
    EXPECTED = "is named by the store as a member of the generation"
    RECONNECTED_FORMING = "reconnected while forming"
    RECONNECTED = "reconnected while running"
    TAKEN_UP = "trains in the generation that the coordinator adopts, or has finished it"
    SPARED = "the job has ended before the worker began with it"
    LET_GO = "is released"
    LOST = "its process has ended or its connection is closed"


class WorkerAction(enum.StrEnum):
    """Actions that accompany the transitions of a worker."""

    NONE = ""
    BEGIN_WARMING = "start timing its warm-up, with a longer heartbeat timeout"
    END_WARMING = "stop timing its warm-up, and let it join from now on"
    WATCH = "restart its heartbeat timeout"
    CLEAR_REASON = "clear the reason why it does not work"
    FORGET = "discard its reported states and heartbeats"


_W, _WE, _WA = WorkerState, WorkerEvent, WorkerAction


def _worker(
    event: WorkerEvent,
    states: Collection[WorkerState],
    state: WorkerState,
    action: WorkerAction = WorkerAction.NONE,
) -> Row[WorkerState, WorkerEvent, WorkerAction]:
    return Row(event, frozenset(states), state, action)


WORKER: Final = Table(
    "worker",
    (
        _worker(_WE.PREPARED, {_W.IDLE, _W.INCOMPATIBLE}, _W.WARMING, _WA.BEGIN_WARMING),
        _worker(_WE.WARMED, {_W.WARMING}, _W.READY, _WA.END_WARMING),
        _worker(_WE.CAME_BACK, {_W.IDLE}, _W.WARMING),
        _worker(_WE.CALLED_BACK, {_W.IDLE, _W.WARMING}, _W.WARMING, _WA.BEGIN_WARMING),
        _worker(_WE.LEFT_OLD, {_W.WARMING}, _W.READY, _WA.END_WARMING),
        _worker(_WE.INCOMPATIBLE, {_W.IDLE}, _W.INCOMPATIBLE),
        _worker(_WE.LEFT_ALONE, {_W.IDLE}, _W.INCOMPATIBLE),
        _worker(_WE.DISAGREES, AVAILABLE | {_W.INCOMPATIBLE}, _W.INCOMPATIBLE),
        _worker(_WE.AGREES, {_W.INCOMPATIBLE}, _W.READY, _WA.CLEAR_REASON),
        _worker(_WE.NO_LINK, AVAILABLE, _W.ISOLATED),
        _worker(_WE.LINK_WORKS, {_W.ISOLATED}, _W.READY, _WA.CLEAR_REASON),
        _worker(_WE.ASSIGNED, AVAILABLE, _W.FORMING),
        _worker(_WE.RUNS, {_W.FORMING}, _W.RUNNING),
        _worker(_WE.FROZE, MEMBERS, _W.FROZEN),
        _worker(_WE.FINISHED, MEMBERS, _W.FINISHED),
        _worker(_WE.CLOSED, {_W.FINISHED}, _W.READY),
        _worker(_WE.DISCONNECTED, {_W.RUNNING, _W.FINISHED}, _W.DISCONNECTED, _WA.WATCH),
        _worker(_WE.EXPECTED, {_W.IDLE}, _W.DISCONNECTED),
        _worker(_WE.RECONNECTED_FORMING, MEMBERS, _W.FORMING, _WA.WATCH),
        _worker(_WE.RECONNECTED, MEMBERS, _W.RUNNING, _WA.WATCH),
        _worker(_WE.TAKEN_UP, {_W.WARMING, _W.READY}, _W.RUNNING, _WA.WATCH),
        _worker(_WE.SPARED, {_W.INCOMPATIBLE}, _W.IDLE, _WA.CLEAR_REASON),
        _worker(_WE.LET_GO, set(WorkerState) - GONE, _W.RELEASED, _WA.FORGET),
        _worker(_WE.LOST, set(WorkerState) - GONE, _W.LOST, _WA.FORGET),
    ),
)


# --- the generation that the job runs in ---------------------------------------------------------


class GenerationState(enum.StrEnum):
    """State of the current generation."""

    NONE = "none"
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"


class GenerationEvent(enum.StrEnum):
    """Events of the current generation."""

    ANNOUNCED = "is stored, and its members are told"
    ADOPTED_FORMING = "was announced by an earlier coordinator process"
    ADOPTED_RUNNING = "was running under an earlier coordinator process"
    TAKEN_UP = "all its members have reconnected and train in it, or have finished it"
    ALL_RUN = "all its members are running"
    ENDS = "a member is lost or has left, or a worker is to join"
    CLOSED = "has no members any more"


class GenerationAction(enum.StrEnum):
    """Actions that accompany the transitions of the generation."""

    NONE = ""
    BEGIN = "mark it as not yet trained"
    HAS_RUN = "mark it as trained"
    ADVANCES = "mark it as trained, and start timing its progress"
    FORGET = "discard its roster and its deadlines"


_G, _GE, _GA = GenerationState, GenerationEvent, GenerationAction

GENERATION: Final = Table(
    "generation",
    (
        Row(_GE.ANNOUNCED, frozenset({_G.NONE}), _G.FORMING, _GA.BEGIN),
        Row(_GE.ADOPTED_FORMING, frozenset({_G.NONE}), _G.FORMING, _GA.NONE),
        Row(_GE.ADOPTED_RUNNING, frozenset({_G.NONE}), _G.RUNNING, _GA.HAS_RUN),
        Row(_GE.TAKEN_UP, frozenset({_G.NONE}), _G.RUNNING, _GA.ADVANCES),
        Row(_GE.ALL_RUN, frozenset({_G.FORMING}), _G.RUNNING, _GA.ADVANCES),
        Row(_GE.ENDS, frozenset({_G.FORMING, _G.RUNNING}), _G.ENDING, _GA.NONE),
        Row(_GE.CLOSED, frozenset(GenerationState), _G.NONE, _GA.FORGET),
    ),
)


# --- a job ---------------------------------------------------------------------------------------


class JobState(enum.StrEnum):
    """State of a job."""

    QUEUED = "queued"
    WAITING = "waiting"
    WARMING = "warming"
    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    SAVING = "saving"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
GOES_ON: Final = frozenset({JobState.WAITING, JobState.WARMING, JobState.FORMING, JobState.RUNNING})
"""States of the active job while neither its end nor its stop is decided."""


class JobEvent(enum.StrEnum):
    """Events of a job."""

    ACTIVATED = "becomes the active job"
    TO_FINISH_AGAIN = "finished under an earlier coordinator process, but not saved"
    TO_STOP_AGAIN = "stopped under an earlier coordinator process, but not saved"
    WAITS = "too few workers are ready, or an absent worker may hold a newer state"
    WARMS_UP = "waits for workers to warm up"
    DECIDED = "its next generation is decided"
    RUNS = "all members of its generation are running"
    TAKEN_UP = "all members of its generation have reconnected, and train or have finished"
    STOPS = "is cancelled, or has failed"
    SAVES = "its last state is to be saved"
    TRAINS_AGAIN = "all holders of its last state are gone"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobAction(enum.StrEnum):
    """Actions that accompany the transitions of a job."""

    NONE = ""
    CLEAR_VERDICT = "clear its verdict"


_J, _JE, _JA = JobState, JobEvent, JobAction
_STARTS: Final = GOES_ON | {JobState.QUEUED}
_CAN_END: Final = frozenset(JobState) - ENDED

JOB: Final = Table(
    "job",
    (
        Row(_JE.ACTIVATED, _STARTS, _J.WARMING, _JA.CLEAR_VERDICT),
        Row(_JE.TO_FINISH_AGAIN, frozenset({_J.SAVING}), _J.RUNNING, _JA.CLEAR_VERDICT),
        Row(_JE.TO_STOP_AGAIN, frozenset({_J.SAVING}), _J.STOPPING, _JA.NONE),
        Row(_JE.WAITS, GOES_ON, _J.WAITING, _JA.NONE),
        Row(_JE.WARMS_UP, GOES_ON, _J.WARMING, _JA.NONE),
        Row(_JE.DECIDED, GOES_ON, _J.FORMING, _JA.NONE),
        Row(_JE.RUNS, frozenset({_J.FORMING}), _J.RUNNING, _JA.NONE),
        Row(_JE.TAKEN_UP, GOES_ON, _J.RUNNING, _JA.NONE),
        Row(_JE.STOPS, GOES_ON | {_J.STOPPING}, _J.STOPPING, _JA.NONE),
        Row(_JE.SAVES, GOES_ON | {_J.STOPPING}, _J.SAVING, _JA.NONE),
        Row(_JE.TRAINS_AGAIN, frozenset({_J.SAVING}), _J.WAITING, _JA.CLEAR_VERDICT),
        Row(_JE.DONE, GOES_ON | {_J.STOPPING, _J.SAVING}, _J.DONE, _JA.NONE),
        Row(_JE.FAILED, _CAN_END, _J.FAILED, _JA.NONE),
        Row(_JE.CANCELLED, _CAN_END, _J.CANCELLED, _JA.NONE),
    ),
)


# --- a worker, as it sees itself -----------------------------------------------------------------


class MemberState(enum.StrEnum):
    """State of this worker."""

    IDLE = "idle"
    WARMING = "warming"
    READY = "ready"
    FORMING = "forming"
    RUNNING = "running"
    FROZEN = "frozen"
    FINISHED = "finished"


HOLDS: Final = frozenset({MemberState.FROZEN, MemberState.FINISHED})
"""States of a worker that has left its generation and holds a training state."""


class MemberEvent(enum.StrEnum):
    """Events of a worker, as it sees itself."""

    PREPARE = "PREPARE for another job"
    ASSIGN = "ASSIGN to a newer generation"
    FREEZE = "FREEZE for its generation"
    SAVE = "SAVE for its job"
    RELEASE = "RELEASE"
    STOP_ASKED = "the administrator stops the daemon"
    WARM = "the training thread has warmed up"
    RUNNING = "the training thread has the starting state"
    FROZE = "the training thread has left the generation"
    DIVERGED = "the training thread's state differs from the majority's"
    FINISHED = "the training thread has completed the last step"


class MemberAction(enum.StrEnum):
    """Actions of a worker upon an event."""

    IGNORE = ""
    WARM_UP = "start the training thread"
    FORM_RING = "connect to the neighbours"
    END_RING = "end the generation, immediately or after the step"
    REPORT = "report it to the coordinator"
    REPORT_AGAIN = "report the state it holds to the coordinator again"
    SAVE_STATE = "write the state it holds to disk"
    START_AFRESH = "restart in a clean interpreter"
    LEAVE = "ask the coordinator for permission to leave"
    EXIT = "tell the coordinator that it leaves, and exit"


_M, _ME, _MA = MemberState, MemberEvent, MemberAction


def _member(
    event: MemberEvent,
    states: Collection[MemberState],
    state: MemberState | None,
    action: MemberAction,
) -> Row[MemberState, MemberEvent, MemberAction]:
    return Row(event, frozenset(states), state, action)


_ALL = frozenset(MemberState)
_BUSY = _ALL - {MemberState.IDLE}
_IN_RING = frozenset({MemberState.FORMING, MemberState.RUNNING})
_CAN_FORM = HOLDS | {MemberState.READY}

MEMBER: Final = Table(
    "member",
    (
        _member(_ME.PREPARE, {_M.IDLE}, _M.WARMING, _MA.WARM_UP),
        _member(_ME.PREPARE, _BUSY, None, _MA.START_AFRESH),
        _member(_ME.WARM, {_M.WARMING}, _M.READY, _MA.REPORT),
        _member(_ME.ASSIGN, _CAN_FORM, _M.FORMING, _MA.FORM_RING),
        _member(_ME.ASSIGN, _ALL - _CAN_FORM, None, _MA.IGNORE),
        _member(_ME.RUNNING, {_M.FORMING}, _M.RUNNING, _MA.REPORT),
        _member(_ME.FREEZE, _IN_RING, None, _MA.END_RING),
        _member(_ME.FREEZE, HOLDS, None, _MA.REPORT_AGAIN),
        _member(_ME.FROZE, _IN_RING | HOLDS, _M.FROZEN, _MA.REPORT),
        _member(_ME.FINISHED, {_M.RUNNING}, _M.FINISHED, _MA.REPORT),
        _member(_ME.DIVERGED, _IN_RING | HOLDS, None, _MA.START_AFRESH),
        _member(_ME.SAVE, HOLDS, None, _MA.SAVE_STATE),
        _member(_ME.SAVE, _ALL - HOLDS, None, _MA.IGNORE),
        _member(_ME.RELEASE, {_M.IDLE}, None, _MA.IGNORE),
        _member(_ME.RELEASE, _BUSY, None, _MA.START_AFRESH),
        _member(_ME.STOP_ASKED, {_M.IDLE}, None, _MA.EXIT),
        _member(_ME.STOP_ASKED, _BUSY, None, _MA.LEAVE),
    ),
)
