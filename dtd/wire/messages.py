"""Every message of the protocol, its number and its fields (protocol.md, "Messages").

Messages are frozen dataclasses; `encode_header` and `decode_message` translate to and from a
frame's msgpack map.  Unknown fields are ignored, unknown types refused.  Which side may send what,
and when, is the business of `dtd.wire.connection`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

import msgpack

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire import frames
from dtd.wire.fields import (
    F64,
    U8,
    U16,
    U32,
    U64,
    Flag,
    Map,
    Name,
    Text,
    list_of,
    parse_record,
    record_values,
)
from dtd.wire.header import Header

TYPE_KEY: Final = "t"
MAX_WORLD: Final = 64
MAX_WORD_BYTES: Final = 32 * 1024


class Role(enum.StrEnum):
    """Who opens a connection, and what for."""

    WORKER = "worker"
    CTL = "ctl"
    RING = "ring"
    LIFELINE = "lifeline"
    FETCH = "fetch"


class Phase(enum.IntEnum):
    """The two halves of a ring all-reduce."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1


_registry: dict[int, type[Any]] = {}
_numbers: dict[type[Any], int] = {}
_names: dict[type[Any], str] = {}

MessageT = TypeVar("MessageT")


def _upper_name(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() and i else c for i, c in enumerate(name)).upper()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _message(number: int) -> Callable[[type[MessageT]], type[MessageT]]:
    """Register a dataclass as message `number`; a number is given out once."""

    def register(cls: type[MessageT]) -> type[MessageT]:
        made = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        if number in _registry:
            raise ValueError(f"message number {number:#x} is taken twice")
        _registry[number] = made
        _numbers[made] = number
        _names[made] = _upper_name(made.__name__)
        return made

    return register


# --- records inside messages -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One line of a roster; its place in the list is its rank.

    `holds`: it has the state that the generation starts from, and gives it to those who have not.
    """

    name: Name
    incarnation: U64
    host: Name
    port: U16
    holds: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The newest state of a job that a worker holds.

    `where` is "memory", "checkpoint" or "none"; `generation` 0 and `step` 0 mean nothing trained.
    """

    job: Name
    generation: U32
    step: U64
    digest: Name
    where: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """One piece of fetchable bytes."""

    name: Text
    size_bytes: U64


# --- connection ------------------------------------------------------------------------------


@_message(0x01)
class Hello:
    """First frame of every connection, from the side that opened it."""

    role: Name
    name: Name
    protocol_min: U8
    protocol_max: U8
    version: Name
    max_payload_bytes: U32
    incarnation: U64 = 0
    generation: U32 = 0
    roster_id: U64 = 0
    rank: U16 = 0


@_message(0x02)
class Welcome:
    """Answer to HELLO: the connection is open with these limits."""

    protocol: U8
    version: Name
    name: Name
    max_payload_bytes: U32


@_message(0x03)
class Error:
    """The last frame before the sender closes the connection."""

    code: U16
    message: Text
    remedy: Text = ""


@_message(0x04)
class Goodbye:
    """The sender leaves in good order and will close the connection."""

    reason: Text = ""


# --- worker and coordinator ------------------------------------------------------------------


@_message(0x10)
class Register:
    """A worker introduces itself, with the generation it still takes part in, if any.

    `phase` is what it does in that generation: "forming", "running", "frozen" or "finished".
    """

    name: Name
    incarnation: U64
    pid: U32
    host: Name
    device: Name
    data_host: Name
    data_port: U16
    version: Name
    job: Name = ""
    generation: U32 = 0
    roster_id: U64 = 0
    step: U64 = 0
    phase: Name = ""


@_message(0x11)
class Registered:
    """The coordinator knows the worker."""

    heartbeat_interval_s: F64
    heartbeat_timeout_s: F64


@_message(0x12)
class Heartbeat:
    """The worker's process is alive; its counters say whether training is.

    `own_s`: mean seconds of a step that this worker works rather than waits for others.
    `stalled_s`: since its training thread last made progress, 0 while that waits for the ring;
    beyond `patience_s` it counts as stuck, and `where` names the line that it is in.
    """

    state: Name
    job: Name = ""
    generation: U32 = 0
    step: U64 = 0
    epoch: U64 = 0
    loss: F64 = 0.0
    samples_per_s: F64 = 0.0
    step_s: F64 = 0.0
    compute_s: F64 = 0.0
    comm_s: F64 = 0.0
    exposed_s: F64 = 0.0
    own_s: F64 = 0.0
    memory_bytes: U64 = 0
    stalled_s: F64 = 0.0
    patience_s: F64 = 0.0
    where: Text = ""
    waiting: Text = ""


@_message(0x13)
class HeartbeatAck:
    """The coordinator heard the heartbeat."""


@_message(0x14)
class Prepare:
    """Warm up for a job: import, build the model, open the data."""

    job: Name
    spec: Map
    from_job: Name = ""
    from_step: U64 = 0
    from_mode: Name = ""


@_message(0x15)
class Warmed:
    """The worker is ready for a generation of the job."""

    job: Name
    dataset_rows: U64
    dataset_fingerprint: Name
    plan_digest: Name
    numerics_fingerprint: Name
    parameters: U64
    steps_total: U64
    held: Annotated[tuple[Held, ...], list_of(Held, 1)]


@_message(0x16)
class Assign:
    """A new generation: its roster, this worker's rank in it, and the state it starts from.

    A state is named by the generation that committed its last step and the number of its steps.
    """

    job: Name
    generation: U32
    roster_id: U64
    rank: U16
    roster: Annotated[tuple[Member, ...], list_of(Member, MAX_WORLD)]
    held_generation: U32
    held_step: U64


@_message(0x17)
class Running:
    """The worker's ring is up, its state agreed with all ranks: it trains."""

    job: Name
    generation: U32
    step: U64


@_message(0x18)
class Freeze:
    """End the generation: at the next step boundary, or now; `leave`: this worker leaves then."""

    generation: U32
    at_boundary: Flag
    stop: Flag
    reason: Text
    leave: Flag = False


@_message(0x19)
class Frozen:
    """The worker takes no further part in a generation, and this is what it holds.

    (`prepared_generation`, `prepared_step`) names the state that it would hold after committing
    what it has prepared, and is what it holds when nothing is.  `evidence` says how it lost
    `suspect`: "ended" (its lifeline was cut), "reset", "silent", "unreachable", "corrupt" or
    "diverged"; it is empty when the generation ended in good order.
    """

    job: Name
    generation: U32
    roster_id: U64
    prepared_generation: U32
    prepared_step: U64
    held: Annotated[tuple[Held, ...], list_of(Held, 1)]
    suspect: Name
    evidence: Name
    reason: Text


@_message(0x1A)
class Finished:
    """The worker has committed the job's last step, or its last one before a stop.

    `held_generation` committed that step; `generation` is the one that agreed on the digest.
    """

    job: Name
    generation: U32
    held_generation: U32
    step: U64
    digest: Name
    stopped: Flag
    result: Map


@_message(0x1B)
class Failed:
    """The job cannot go on because of its own code, data or numbers."""

    job: Name
    reason: Text
    traceback: Text


@_message(0x1C)
class Release:
    """The job is over for this worker; it starts afresh and registers again."""

    job: Name
    state: Name
    reason: Text


@_message(0x1D)
class Evaluated:
    """Result of an evaluation; equal on all ranks, sent by rank 0."""

    job: Name
    step: U64
    metrics: Map


@_message(0x1E)
class CheckpointSaved:
    """A checkpoint was published on the worker's disk; `kept` {"names"}: those still there."""

    job: Name
    generation: U32
    step: U64
    digest: Name
    size_bytes: U64
    directory: Text
    metrics: Map
    kept: Map


@_message(0x1F)
class JobOutput:
    """Lines that the job's own code printed; the payload is UTF-8 text, a line each."""

    job: Name
    rank: U16


@_message(0x20)
class Notice:
    """Something the operator should know and that stopped nothing."""

    job: Name
    event: Name
    message: Text


@_message(0x21)
class Progress:
    """One committed step, from rank 0: what curves and metrics are made of.

    `skipped` says whether this step was committed without an update, `skipped_steps` how many were.
    """

    job: Name
    generation: U32
    step: U64
    epoch: U64
    loss: F64
    learning_rate: F64
    grad_norm: F64
    rows: U32
    step_s: F64
    compute_s: F64
    comm_s: F64
    exposed_s: F64
    skipped: Flag
    skipped_steps: U64


@_message(0x22)
class Leave:
    """The worker wants to leave at the next step boundary; it is released when it may go."""

    reason: Text


@_message(0x23)
class Probe:
    """Coordinator to worker: can you open a connection to that worker's data port?"""

    name: Name
    host: Name
    port: U16


@_message(0x24)
class Probed:
    """The answer to PROBE."""

    name: Name
    reachable: Flag
    reason: Text = ""


# --- ring and fetch --------------------------------------------------------------------------


@_message(0x30)
class Chunk:
    """One chunk of one bucket on its way round the ring; the payload is its elements."""

    generation: U32
    step: U64
    phase: U8
    hop: U16
    bucket: U16
    chunk: U32
    source: U16


@_message(0x31)
class Word:
    """One rank's small word on its way round the ring; the payload is the word."""

    generation: U32
    step: U64
    sequence: U32
    hop: U16
    origin: U16
    source: U16


@_message(0x32)
class Beat:
    """Sent in both directions of a ring link at the heartbeat interval: this side is alive."""

    generation: U32


@_message(0x38)
class FetchOpen:
    """Ask for the blobs of a resource: "state/GENERATION" or "checkpoint/JOB/NAME"."""

    resource: Text


@_message(0x39)
class FetchInfo:
    """The blobs of the resource, in order; the payload is its manifest."""

    blobs: Annotated[tuple[BlobInfo, ...], list_of(BlobInfo, 16384)]
    more: Flag = False


@_message(0x3A)
class FetchRange:
    """Ask for a range of one blob of the open resource."""

    blob: U32
    offset: U64
    length: U32


@_message(0x3B)
class FetchData:
    """The range asked for, as payload."""

    blob: U32
    offset: U64


# --- dtdctl and coordinator ------------------------------------------------------------------


@_message(0x40)
class SubmitJob:
    """Queue a job; the spec was validated by the sender and is validated again."""

    spec: Map
    from_job: Name = ""
    from_step: U64 = 0


@_message(0x41)
class GetStatus:
    """Ask for the status object (schema 1)."""


@_message(0x42)
class WaitJob:
    """Ask to be answered when the job has ended."""

    job: Name


@_message(0x43)
class CancelJob:
    """Stop the job at its next step boundary, keeping a checkpoint."""

    job: Name


@_message(0x44)
class KillWorker:
    """Send a signal to a worker's process: KILL, TERM or STOP."""

    name: Name
    signal: Name


@_message(0x45)
class DrainWorker:
    """Let a worker leave at the next step boundary."""

    name: Name


@_message(0x46)
class ListJobs:
    """Ask for all jobs, newest first."""


@_message(0x47)
class ReadLogs:
    """Ask for what a job's own code printed, from a cursor on."""

    job: Name
    after: U64 = 0


@_message(0x48)
class ReadEvents:
    """Ask for incidents, from a cursor on; with `follow` wait until there is one."""

    after: U64 = 0
    follow: Flag = False


@_message(0x49)
class ListCheckpoints:
    """Ask for known checkpoints, of one job or of all."""

    job: Name = ""


@_message(0x4C)
class ResumeJob:
    """Let a waiting job go on without those who may hold a newer state and are away."""

    job: Name


@_message(0x4A)
class Result:
    """The answer to a dtdctl request; the payload is a msgpack map."""


@_message(0x4B)
class Signal:
    """Coordinator to worker: send yourself this signal (KILL, TERM or STOP)."""

    signal: Name


Message = (
    Hello
    | Welcome
    | Error
    | Goodbye
    | Register
    | Registered
    | Heartbeat
    | HeartbeatAck
    | Prepare
    | Warmed
    | Assign
    | Running
    | Freeze
    | Frozen
    | Finished
    | Failed
    | Release
    | Evaluated
    | CheckpointSaved
    | JobOutput
    | Notice
    | Progress
    | Leave
    | Probe
    | Probed
    | Chunk
    | Word
    | Beat
    | FetchOpen
    | FetchInfo
    | FetchRange
    | FetchData
    | SubmitJob
    | GetStatus
    | WaitJob
    | CancelJob
    | KillWorker
    | DrainWorker
    | ListJobs
    | ReadLogs
    | ReadEvents
    | ListCheckpoints
    | ResumeJob
    | Result
    | Signal
)


def message_types() -> dict[int, type[Any]]:
    """Number to class, of every message."""
    return dict(_registry)


def message_name(message_type: type[Any]) -> str:
    """The name protocol.md uses: HEARTBEAT_ACK for HeartbeatAck."""
    return _names[message_type]


def encode_header(message: Message) -> bytes:
    """The msgpack map of a message, its number under "t".

    Text that is no Unicode (a file's name in somebody's traceback) is sent with question marks.

    Raises:
        LocalProtocolError: a field's value is one that the receiver would refuse.
    """
    message_type = type(message)
    try:
        values = record_values(message, where=message_name(message_type))
        packed: bytes = msgpack.packb(
            {TYPE_KEY: _numbers[message_type], **values}, unicode_errors="replace"
        )
    except (ProtocolError, ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"{message_name(message_type)} cannot be sent: {error}") from None
    return packed


def decode_message(header: Header) -> Message:
    """The message of a decoded header.

    Raises:
        ProtocolError: UNKNOWN_TYPE or BAD_FIELD.
    """
    number = header.get(TYPE_KEY)
    message_type = _registry.get(number) if type(number) is int else None
    if message_type is None:
        shown = number if isinstance(number, int) else type(number).__name__
        raise ProtocolError(ErrorCode.UNKNOWN_TYPE, f"message type {shown} is not known")
    message: Message = parse_record(message_type, header, where=message_name(message_type))
    return message


def message_bytes(message: Message, payload: bytes = b"") -> bytes:
    """A whole small frame that carries a message."""
    return frames.frame_bytes(encode_header(message), payload)
