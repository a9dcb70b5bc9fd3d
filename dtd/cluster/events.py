"""The coordinator's events and effects, and the order in which a shell performs effects.

Messages that a crash of the coordinator must not make untrue are sent after the store has them: an
assignment with its generation, a release with the job's outcome.  Everything else is sent at once,
however slow the disk: a worker without acknowledgements for a few seconds would consider the
coordinator dead.  On one connection nothing overtakes a waiting message.  A store that is slower
than the events must not fall further and further behind: a waiting job is written once, in its
state at that time.  Pure; `dtd.coordinator.core` and the simulation perform what comes out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dtd.cluster.records import Job
from dtd.wire import messages as m

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWorker:
    """A message from a registered worker, or its REGISTER."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The control connection of this incarnation is gone; `farewell`: closed with GOODBYE."""

    name: str
    incarnation: int
    reason: str
    farewell: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A job was submitted, or read back from the store."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested:
    """The operator has cancelled the job, or a sweep has; `reason` empty: the operator."""

    job: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """The operator states that the absent workers will not come back."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequested:
    """The operator deletes a job, or with `step` its checkpoints of that step."""

    job: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """The operator drains the worker: it leaves at a step boundary."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """The operator sends a signal to the worker's process."""

    name: str
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The operator has revoked the worker's credential."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSaved:
    """A job whose `SaveJob` announces a generation is stored, or the reason why it is not."""

    job: str
    generation: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeliverable:
    """A message to a job's workers cannot be sent; retrying is pointless."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """A deadline has been reached, and everything that had arrived by then was handed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HappenedElsewhere:
    """Something has happened in another cluster of the same workers."""


Event = (
    FromWorker
    | WorkerLost
    | Submitted
    | CancelRequested
    | ResumeRequested
    | DeleteRequested
    | DrainRequested
    | KillRequested
    | Revoked
    | JobSaved
    | Undeliverable
    | Ticked
    | HappenedElsewhere
)


# --- effects ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message to a worker."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """Close a worker's control connection with this reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """Store the job durably before the effects that follow.

    `announces` is the generation that is announced once `JobSaved` confirms the write; 0 for none.
    """

    job: Job
    announces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An event for the operator; `details` are figures that JSON can represent."""

    kind: str
    message: str
    job: str = ""
    worker: str = ""
    generation: int = 0
    step: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job has reached its last state."""

    job: Job


Effect = Send | Disconnect | SaveJob | Incident | JobEnded


Note = TypeVar("Note")
About = TypeVar("About")


@dataclass(frozen=True, slots=True)
class Item(Generic[Note, About]):
    """An effect, or a note of the shell's own that keeps its place among them.

    Attributes:
        about: what the shell needs to perform it; of a message, the connection that it goes to.
    """

    effect: Effect | Note
    about: About


class Outbox(Generic[Note, About]):
    """The waiting effects; the first is the write for which they wait."""

    def __init__(self) -> None:
        self._waiting: deque[Item[Note, About]] = deque()

    def put(self, item: Item[Note, About]) -> list[Item[Note, About]]:
        """Take the next effect; returns the effects to perform now.

        A SaveJob that comes out is to be written; `written` says that it was.
        """
        if not self._waiting:
            if isinstance(item.effect, SaveJob):
                self._waiting.append(item)
            return [item]
        if needs_no_store(item.effect) and not self._waits_behind(item):
            return [item]
        if not self._renewed(item):
            self._waiting.append(item)
        return []

    def written(self) -> list[Item[Note, About]]:
        """The last returned job is written; returns the effects that followed it."""
        self._waiting.popleft()
        ready: list[Item[Note, About]] = []
        while self._waiting:
            ready.append(self._waiting[0])
            if isinstance(self._waiting[0].effect, SaveJob):
                break
            self._waiting.popleft()
        return ready

    def _renewed(self, item: Item[Note, About]) -> bool:
        """Replace a waiting write of the same job by the newer one; returns whether there was one.

        The write keeps its place before the effects that wait for it, which remain true with newer
        data on disk.  A write that announces a generation is not replaced, since it belongs to that
        generation; nor is one that is already in progress.
        """
        if not isinstance(item.effect, SaveJob) or item.effect.announces:
            return False
        for index in range(len(self._waiting) - 1, 0, -1):
            waiting = self._waiting[index].effect
            if isinstance(waiting, SaveJob):
                if waiting.announces or waiting.job.id != item.effect.job.id:
                    return False  # an older record must not be written after a newer one
                self._waiting[index] = item
                return True
        return False

    def _waits_behind(self, item: Item[Note, About]) -> bool:
        """Whether an earlier message on the same connection is waiting."""
        if isinstance(item.effect, Send) and isinstance(item.effect.message, m.HeartbeatAck):
            return False  # its meaning does not depend on the time
        return any(
            one.about is item.about and isinstance(one.effect, Send) for one in self._waiting
        )


def needs_no_store(effect: object) -> bool:
    """Whether it stays true, or is harmless, if the coordinator forgets its reason."""
    if isinstance(effect, Disconnect):
        return True
    if not isinstance(effect, Send):
        return False
    message = effect.message
    if isinstance(message, m.Freeze):
        return not message.stop
    if isinstance(message, m.Release):
        return message.state == "evicted"
    return not isinstance(message, m.Assign | m.Prepare)
