"""The events and effects of a worker's membership.

The vocabulary between the pure machine (`membership.member`) and its shells
(`dtd.worker.daemon`, the simulation).
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.wire import messages as m

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
    compared_step: int = 0
    compared_digest: str = ""
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
