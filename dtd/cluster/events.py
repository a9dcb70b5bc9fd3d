"""The events and effects of the coordinator's membership.

The vocabulary between the pure machine (`dtd.cluster`) and its shells
(`dtd.coordinator.daemon`, the simulation).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    """A deadline has been reached."""


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
