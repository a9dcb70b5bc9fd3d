"""Worker and coordinator beside membership: reports of a job, requests and their answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from dtd.wire.fields import (
    U16,
    U32,
    U64,
    Directory,
    Figure,
    Figures,
    Flag,
    Generation,
    Host,
    Hosts,
    Map,
    Name,
    Names,
    NoticeKind,
    Octets,
    Seconds,
    Shards,
    StepRows,
    Text,
    Words,
    list_of,
)
from dtd.wire.messages.registry import Message, message


@message
class Evaluated(Message):
    """The result of an evaluation; equal on all ranks, sent by rank 0."""

    job: Name
    step: U64
    metrics: Figures


@message
class CheckpointSaved(Message):
    """A checkpoint was published on the worker's disk; `kept`: the names of all that it has kept.

    `write_s`: duration of the write, in the background; 0 when it was not measured.  `part`: which
    shards of a sharded state it contains; empty: all of it.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name
    size_bytes: U64
    directory: Directory
    metrics: Figures
    kept: Names
    write_s: Seconds = 0.0
    part: Shards = ()


@message
class Agreed(Message):
    """All ranks hold this state, which is to be saved: they have compared its digest in the ring.

    Sent by each rank as soon as it has seen the agreement, before any publishes the checkpoint.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name


@message
class JobOutput(Message):
    """Lines that the job's own code printed; the payload is UTF-8 text, one line for each."""

    job: Name
    rank: U16


@message
class Notice(Message):
    """Something that the operator should know; training continues."""

    job: Name
    event: NoticeKind
    message: Words


@message
class Progress(Message):
    """One committed step, from rank 0: the data of curves and metrics.

    `skipped` says whether this step was committed without an update, `skipped_steps` how many were.
    `steps` holds rows (`dtd.wire.step_rows`) of all steps since the message before.
    """

    job: Name
    generation: Generation
    step: U64
    epoch: U64
    loss: Figure
    learning_rate: Figure
    grad_norm: Figure
    rows: U32
    step_s: Seconds
    compute_s: Seconds
    comm_s: Seconds
    exposed_s: Seconds
    skipped: Flag
    skipped_steps: U64
    steps: StepRows = b""


MAX_PART_HOLDERS: Final = 64
"""Most holders in one PARTS message, and sources in one DATA_SOURCES message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHolder:
    """A connected worker that has a part of a checkpoint, and a ticket to fetch it.

    `part`: its shards; empty if it has all of them.
    """

    name: Name
    host: Host
    port: U16
    resource: Text
    part: Shards
    ticket_expires_s: U64
    ticket_key: Octets = field(default=b"", repr=False)
    others: Hosts = ()


@message
class Probe(Message):
    """Coordinator to worker: test whether you can fetch from that worker's data port."""

    name: Name
    host: Host
    port: U16
    ticket_expires_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)
    others: Hosts = ()


@message
class Probed(Message):
    """The answer to PROBE; `greeted` without `reachable`: only small frames arrive."""

    name: Name
    reachable: Flag
    reason: Words = ""
    greeted: Flag = False


@message
class GetPackage(Message):
    """Worker to coordinator: request a package from this offset on; `kind` as in PUT_PACKAGE."""

    digest: Name
    offset: U64
    kind: Name = ""


@message
class Package(Message):
    """A piece of a package as payload; `size` is the whole, 0 when the coordinator lacks it."""

    digest: Name
    offset: U64
    size: U64


@message
class Measure(Message):
    """Coordinator to worker: measure this and answer with MEASURED.

    `what`: "host" (clock, disk), "latency" or "bandwidth" (of the link from worker `name` to this
    one) or "step" (of the job `spec` for worlds of 1 to `worlds` workers); `package` as in PREPARE.
    "profile": record up to `steps` steps of the running `job` within `limit_s`, from the step after
    `first_step` on, as the file `profile`.
    """

    number: U64
    what: Name
    name: Name = ""
    host: Host = ""
    port: U16 = 0
    ticket_expires_s: U64 = 0
    ticket_key: Octets = field(default=b"", repr=False)
    spec: Map
    worlds: U16 = 0
    package: Name = ""
    job: Name = ""
    steps: U16 = 0
    limit_s: Seconds = 0.0
    profile: Name = ""
    first_step: U64 = 0
    others: Hosts = ()


@message
class Measured(Message):
    """The answer to MEASURE; `reason` says why there are no figures."""

    number: U64
    figures: Map
    reason: Words = ""
    remedy: Words = ""


@message
class DropCheckpoint(Message):
    """Coordinator to worker: delete this checkpoint of an ended job from your disk."""

    job: Name
    identity: Name
    generation: Generation
    step: U64
    directory: Directory


@message
class CheckpointDropped(Message):
    """The answer to DROP_CHECKPOINT; `reason` says why it is still there."""

    directory: Directory
    reason: Words = ""


@message
class GetParts(Message):
    """Worker to coordinator: ask who has the parts of a checkpoint of its job's `from_job`.

    `step` as `from_step` in PREPARE.
    """

    job: Name
    step: U64


@message
class Parts(Message):
    """The answer to GET_PARTS: connected holders of the parts of one checkpoint.

    `missing`: shards that no connected worker has.  No holders: others hand the state over.
    """

    job: Name
    step: U64
    digest: Name = ""
    holders: Annotated[tuple[PartHolder, ...], list_of(PartHolder, MAX_PART_HOLDERS)] = ()
    missing: Words = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """A connected worker that has data of a job, or some of them, and a ticket to fetch them."""

    name: Name
    host: Host
    port: U16
    complete: Flag
    ticket_expires_s: U64
    ticket_key: Octets = field(default=b"", repr=False)
    others: Hosts = ()


@message
class GetData(Message):
    """Worker to coordinator: what it has of the job's data `name`; asks for other sources.

    `digest` is empty as long as it has none and knows none; the first worker that has all of them
    determines the job's.  Repeated while it fetches, and after each registration.
    """

    job: Name
    name: Name
    digest: Name = ""
    have_bytes: U64 = 0
    size_bytes: U64 = 0


@message
class DataSources(Message):
    """The answer to GET_DATA: the digest of these data, and the workers that can be asked for them.

    `digest` is empty as long as no worker has had them.  `share` of `shares`: which part this
    worker is to fetch first, since so many fetch them at a time.
    """

    job: Name
    name: Name
    digest: Name = ""
    share: U16 = 0
    shares: U16 = 1
    sources: Annotated[tuple[DataSource, ...], list_of(DataSource, MAX_PART_HOLDERS)] = ()
