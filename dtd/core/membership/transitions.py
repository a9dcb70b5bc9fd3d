"""Which states there are, and which event leads from which to which: four tables.

    worker       as the coordinator sees it       WORKER      WorkerState, WorkerEvent
    generation   the one that the job runs in     GENERATION  GenerationState, GenerationEvent
    job          from its submission to its end   JOB         JobState, JobEvent
    member       a worker, as it sees itself      MEMBER      MemberState, MemberEvent

A table maps (state, event) to (next state, action).  An action is what always goes with the
transition and concerns the record itself; `membership.state` and `membership.member` perform it.  A
state is assigned only with what a table says, and an event that a table does not have for a state
is impossible: it raises `ImpossibleTransition`, and the invariants do not hold from then on.

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
    """An event, the states in which it may happen, the state that follows, and what goes with it.

    Attributes:
        event: what happens.
        states: in which it may happen.
        state: that follows; None: it stays.
        action: what goes with it.
    """

    event: Event
    states: frozenset[State]
    state: State | None
    action: Action


class Table(Generic[State, Event, Action]):
    """All transitions of one thing.

    Args:
        of: what it is, for messages.
        rows: no two of them have the same state and event.
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
        """The state that follows, and what goes with the transition.

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
    """Where a worker stands, as the coordinator sees it."""

    IDLE = "idle"
    WARMING = "warming"
    READY = "ready"
    FORMING = "forming"
    RUNNING = "running"
    AWAY = "away"
    FROZEN = "frozen"
    FINISHED = "finished"
    BARRED = "barred"
    REFUSED = "refused"
    RELEASED = "released"
    LOST = "lost"


MEMBERS: Final = frozenset(
    {WorkerState.FORMING, WorkerState.RUNNING, WorkerState.AWAY, WorkerState.FINISHED}
)
"""It takes part in the current generation."""
AVAILABLE: Final = frozenset({WorkerState.READY, WorkerState.FROZEN, WorkerState.BARRED})
"""A new generation may have it."""
GONE: Final = frozenset({WorkerState.RELEASED, WorkerState.LOST})


class WorkerEvent(enum.StrEnum):
    """What happens to a worker."""

    PREPARED = "told to warm up for the job"
    WARMED = "has warmed up"
    CAME_BACK = "came back from a generation that may be the newest, and trains on"
    CALLED_BACK = "came back from a generation that is over, and is asked to leave it"
    LEFT_OLD = "has left the generation that it came back from"
    INCOMPATIBLE = "runs another release of dtd"
    LEFT_ALONE = "the job failed on it: left alone for a while"
    DISAGREES = "has other data, code, model or numerics"
    AGREES = "agrees with the others after all"
    NO_LINK = "no working link to the others"
    LINK_WORKS = "all its links work again"
    ASSIGNED = "assigned to a generation"
    RUNS = "runs in the generation"
    FROZE = "left the generation before the job's end"
    FINISHED = "done with the job's last step"
    CLOSED = "its generation is over"
    DISCONNECTED = "its connection is lost, its generation may go on"
    EXPECTED = "named by the store as a member of the generation"
    RECONNECTED_FORMING = "connected again, forming"
    RECONNECTED = "connected again, running"
    TAKEN_UP = "trains in the generation that is taken up"
    SPARED = "the job has ended, and it had not begun with it"
    LET_GO = "let go"
    LOST = "its process or its connection is gone"


class WorkerAction(enum.StrEnum):
    """What goes with a transition of a worker."""

    NONE = ""
    BEGIN_WARMING = "its warm-up is timed; it may be silent for longer"
    END_WARMING = "its warm-up is over; it may join from now on"
    WATCH = "its silence is counted from now on"
    CLEAR_REASON = "nothing keeps it from working"
    FORGET = "what it held and said is forgotten"


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
        _worker(_WE.PREPARED, {_W.IDLE, _W.REFUSED}, _W.WARMING, _WA.BEGIN_WARMING),
        _worker(_WE.WARMED, {_W.WARMING}, _W.READY, _WA.END_WARMING),
        _worker(_WE.CAME_BACK, {_W.IDLE}, _W.WARMING),
        _worker(_WE.CALLED_BACK, {_W.IDLE, _W.WARMING}, _W.WARMING, _WA.BEGIN_WARMING),
        _worker(_WE.LEFT_OLD, {_W.WARMING}, _W.READY, _WA.END_WARMING),
        _worker(_WE.INCOMPATIBLE, {_W.IDLE}, _W.REFUSED),
        _worker(_WE.LEFT_ALONE, {_W.IDLE}, _W.REFUSED),
        _worker(_WE.DISAGREES, AVAILABLE | {_W.REFUSED}, _W.REFUSED),
        _worker(_WE.AGREES, {_W.REFUSED}, _W.READY, _WA.CLEAR_REASON),
        _worker(_WE.NO_LINK, AVAILABLE, _W.BARRED),
        _worker(_WE.LINK_WORKS, {_W.BARRED}, _W.READY, _WA.CLEAR_REASON),
        _worker(_WE.ASSIGNED, AVAILABLE, _W.FORMING),
        _worker(_WE.RUNS, {_W.FORMING}, _W.RUNNING),
        _worker(_WE.FROZE, MEMBERS, _W.FROZEN),
        _worker(_WE.FINISHED, MEMBERS, _W.FINISHED),
        _worker(_WE.CLOSED, {_W.FINISHED}, _W.READY),
        _worker(_WE.DISCONNECTED, {_W.RUNNING, _W.FINISHED}, _W.AWAY, _WA.WATCH),
        _worker(_WE.EXPECTED, {_W.IDLE}, _W.AWAY),
        _worker(_WE.RECONNECTED_FORMING, MEMBERS, _W.FORMING, _WA.WATCH),
        _worker(_WE.RECONNECTED, MEMBERS, _W.RUNNING, _WA.WATCH),
        _worker(_WE.TAKEN_UP, {_W.WARMING}, _W.RUNNING, _WA.WATCH),
        _worker(_WE.SPARED, {_W.REFUSED}, _W.IDLE, _WA.CLEAR_REASON),
        _worker(_WE.LET_GO, set(WorkerState) - GONE, _W.RELEASED, _WA.FORGET),
        _worker(_WE.LOST, set(WorkerState) - GONE, _W.LOST, _WA.FORGET),
    ),
)


# --- the generation that the job runs in ---------------------------------------------------------


class GenerationState(enum.StrEnum):
    """Where the current generation stands."""

    NONE = "none"
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"


class GenerationEvent(enum.StrEnum):
    """What happens to the current generation."""

    ANNOUNCED = "written down, and its members are told"
    ADOPTED_FORMING = "an earlier coordinator has announced it"
    ADOPTED_RUNNING = "it ran under an earlier coordinator"
    TAKEN_UP = "all its members have come back and train in it"
    ALL_RUN = "all its members run"
    ENDS = "somebody is lost, has left, or is to join"
    CLOSED = "nobody takes part in it any more"


class GenerationAction(enum.StrEnum):
    """What goes with a transition of the generation."""

    NONE = ""
    BEGIN = "nobody has trained in it"
    HAS_RUN = "it has trained"
    ADVANCES = "it has trained, and its progress is timed from now on"
    FORGET = "its roster and its deadlines are forgotten"


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
    """Where a job stands."""

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
"""It is the active one, and nothing has been said of its end."""


class JobEvent(enum.StrEnum):
    """What happens to a job."""

    ACTIVATED = "its turn has come"
    TO_FINISH_AGAIN = "done under an earlier coordinator, and not saved"
    TO_STOP_AGAIN = "stopped under an earlier coordinator, and not saved"
    WAITS = "too few workers, or a newer state may come back"
    WARMS_UP = "waits for workers that warm up"
    DECIDED = "its next generation is decided"
    RUNS = "all members of its generation run"
    TAKEN_UP = "its members have come back and train"
    STOPS = "cancelled, or nothing will come of it"
    SAVES = "its last state is to be saved"
    TRAINS_AGAIN = "all who held its last state are gone"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobAction(enum.StrEnum):
    """What goes with a transition of a job."""

    NONE = ""
    CLEAR_VERDICT = "how it will end is open"


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
    """Where this worker stands."""

    IDLE = "idle"
    WARMING = "warming"
    READY = "ready"
    FORMING = "forming"
    RUNNING = "running"
    FROZEN = "frozen"
    FINISHED = "finished"


HOLDS: Final = frozenset({MemberState.FROZEN, MemberState.FINISHED})
"""It has left its generation and holds a state."""


class MemberEvent(enum.StrEnum):
    """What happens to a worker, as it sees itself."""

    PREPARE = "PREPARE for another job"
    ASSIGN = "ASSIGN to a newer generation"
    FREEZE = "FREEZE of its generation"
    SAVE = "SAVE of its job"
    RELEASE = "RELEASE"
    STOP_ASKED = "the administrator stops it"
    WARM = "the training thread has warmed up"
    RUNNING = "the training thread has taken the state over"
    FROZE = "the training thread has left the generation"
    DIVERGED = "the training thread holds another state than most"
    FINISHED = "the training thread is done"


class MemberAction(enum.StrEnum):
    """What a worker does upon an event."""

    IGNORE = ""
    WARM_UP = "start the training thread"
    FORM_RING = "connect to the neighbours"
    END_RING = "end the generation, now or after the step"
    REPORT = "tell the coordinator"
    REPORT_AGAIN = "tell the coordinator again what it holds"
    SAVE_STATE = "write what it holds"
    START_AFRESH = "start afresh in a clean interpreter"
    LEAVE = "tell the coordinator that it wants to leave"
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
