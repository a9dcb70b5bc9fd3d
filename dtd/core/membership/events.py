"""What happens to the coordinator's membership, and what it answers.

The vocabulary between the pure machine (`dtd.core.membership`) and its shells
(`dtd.coordinator.daemon`, the simulation).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dtd.core.membership.records import Job
from dtd.wire import messages as m

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FromWorker:
    """A message from a registered worker, or its REGISTER."""

    name: str
    message: m.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost:
    """The control connection of this incarnation is gone; `farewell`: it said goodbye before."""

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
    """The operator wants the job stopped."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    """The operator knows that those who are waited for will not come back."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequested:
    """The operator wants a job gone, or with `step` its checkpoints of that step."""

    job: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """The operator wants the worker to leave at a step boundary."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """The operator wants a signal sent to the worker's process."""

    name: str
    signal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The operator took back the worker's credential."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSaved:
    """A job is written down whose `SaveJob` announces a generation, or why it is not."""

    job: str
    generation: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeliverable:
    """What the workers of a job must be told cannot be sent, and why; trying again is no use."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """A deadline has come."""


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
    """Write the job down durably before the effects that follow.

    `announces` is the generation that members hear of once `JobSaved` says that it is written; 0
    for none.
    """

    job: Job
    announces: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something an operator will want to read about; `details` are figures, fit for JSON."""

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
