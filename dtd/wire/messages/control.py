"""Worker and coordinator: who is in the ring, from which state it starts, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from dtd.wire.fields import (
    F64,
    U16,
    U32,
    U64,
    Figure,
    Flag,
    Generation,
    Host,
    Map,
    MemberName,
    Name,
    Octets,
    Seconds,
    Text,
    Words,
    list_of,
)
from dtd.wire.messages.registry import Message, message

MAX_WORLD: Final = 64
MAX_BRANCHES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One line of a roster; its place in the list is its rank.

    `holds`: it has the state that the generation starts from, and gives it to those who have not.
    """

    name: Name
    incarnation: U64
    host: Host
    port: U16
    holds: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The newest state of a job that a worker holds.

    `where` is "memory", "checkpoint" or "none"; `generation` 0 and `step` 0 mean nothing trained.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name
    where: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """States that a job has left: after (`generation`, `step`), of generations < `before`."""

    generation: Generation
    step: U64
    before: Generation


@message
class Register(Message):
    """A worker introduces itself, with the generation it still takes part in, if any.

    `phase` is what it does in that generation: "forming", "running", "frozen" or "finished".
    `identity` tells its job from one of the same id of another store; `roster`, `held_generation`
    and `held_step` are those of its ASSIGN.  `instance` names its state directory.
    `last_end` says how the process before this one ended; empty if in good order.  `proof` shows a
    coordinator that has forgotten the generation that it made this process a member of it.
    """

    name: MemberName
    incarnation: U64
    pid: U32
    host: Name
    device: Name
    data_host: Host
    data_port: U16
    version: Name
    job: Name = ""
    generation: Generation = 0
    roster_id: U64 = 0
    phase: Name = ""
    identity: Name = ""
    roster: Annotated[tuple[Member, ...], list_of(Member, MAX_WORLD)] = ()
    held_generation: Generation = 0
    held_step: U64 = 0
    instance: Name = ""
    last_end: Name = ""
    proof: Octets = field(default=b"", repr=False)


@message
class Registered(Message):
    """The coordinator knows the worker.

    `store_id` names the coordinator's store, which a restored backup keeps; `epoch` grows with each
    restore.  `refused`: why the worker takes no part in any job; empty when it does.
    """

    heartbeat_interval_s: Seconds
    heartbeat_timeout_s: Seconds
    secret: Octets = field(default=b"", repr=False)
    store_id: Name = ""
    epoch: U64 = 0
    refused: Words = ""


@message
class Heartbeat(Message):
    """The worker's process is alive; its counters say whether training is.

    `own_s`: mean seconds of a step that this worker works rather than waits for others.
    `stalled_s`: since its training thread last made progress, 0 while that waits for the ring;
    beyond `patience_s` it counts as stuck, and `where` names the line that it is in.  `still_s` is
    the part of it in which nothing moved there, and `evidence` says what did.
    `rtt_s` and `link_bytes_per_s` are of the link to its next neighbour; bytes count from the start
    of the process; a negative `gpu_use` is unknown.
    """

    state: Name
    job: Name = ""
    generation: Generation = 0
    step: U64 = 0
    epoch: U64 = 0
    loss: Figure = 0.0
    samples_per_s: F64 = 0.0
    step_s: Seconds = 0.0
    compute_s: Seconds = 0.0
    comm_s: Seconds = 0.0
    exposed_s: Seconds = 0.0
    own_s: Seconds = 0.0
    data_s: Seconds = 0.0
    optimizer_s: Seconds = 0.0
    memory_bytes: U64 = 0
    stalled_s: Seconds = 0.0
    patience_s: Seconds = 0.0
    where: Words = ""
    waiting: Words = ""
    learning_rate: Figure = 0.0
    grad_norm: Figure = 0.0
    cpu_s: F64 = 0.0
    sent_bytes: U64 = 0
    received_bytes: U64 = 0
    rtt_s: Seconds = 0.0
    link_bytes_per_s: F64 = 0.0
    gpu_use: F64 = -1.0
    gpu_memory_bytes: U64 = 0
    still_s: Seconds = 0.0
    evidence: Words = ""


@message
class HeartbeatAck(Message):
    """The coordinator heard the heartbeat."""


@message
class Prepare(Message):
    """Warm up for a job: import, build the model, open the data.

    `package` names the code of the task that was shipped with the job; empty: what is installed.
    `identity` is the job's for good, in whatever store or directory (`dtd.job.identity`).
    """

    job: Name
    spec: Map
    from_job: Name = ""
    from_step: U64 = 0
    from_mode: Name = ""
    package: Name = ""
    identity: Name = ""
    from_identity: Name = ""
    weights: Name = ""
    strict: Flag = True


@message
class Warmed(Message):
    """The worker is ready for a generation of the job.

    `task_digest`: hash of the source of the task's package, empty for a built-in task.
    """

    job: Name
    dataset_rows: U64
    dataset_fingerprint: Name
    plan_digest: Name
    numerics_fingerprint: Name
    parameters: U64
    steps_total: U64
    held: Annotated[tuple[Held, ...], list_of(Held, 1)]
    task_digest: Name = ""


@message
class Assign(Message):
    """A new generation: its roster, this worker's rank in it, and the state it starts from.

    A state is named by the generation that committed its last step and the number of its steps.
    """

    job: Name
    generation: Generation
    roster_id: U64
    rank: U16
    roster: Annotated[tuple[Member, ...], list_of(Member, MAX_WORLD)]
    held_generation: Generation
    held_step: U64
    branches: Annotated[tuple[Branch, ...], list_of(Branch, MAX_BRANCHES)] = ()
    secret: Octets = field(default=b"", repr=False)


@message
class Running(Message):
    """The worker's ring is up, its state agreed with all ranks: it trains."""

    job: Name
    generation: Generation
    step: U64


@message
class Freeze(Message):
    """End the generation: at the next step boundary, or now; `leave`: this worker leaves then."""

    generation: Generation
    at_boundary: Flag
    stop: Flag
    reason: Words
    leave: Flag = False


@message
class Frozen(Message):
    """The worker takes no further part in a generation, and this is what it holds.

    (`prepared_generation`, `prepared_step`) names the state that it would hold after committing
    what it has prepared, and is what it holds when nothing is.  `evidence` says how it lost
    `suspect`: "ended" (its lifeline was cut), "reset", "silent", "unreachable", "corrupt" or
    "diverged"; it is empty when the generation ended in good order.  If it diverged, states differ
    after `diverged_step` steps, and first in the entry `differs`, if that is known.
    `compared_digest` is the digest of the worker's own state after `compared_step` steps, the
    newest that it has offered to the other ranks of the generation; empty if it has offered none.
    """

    job: Name
    generation: Generation
    roster_id: U64
    prepared_generation: Generation
    prepared_step: U64
    held: Annotated[tuple[Held, ...], list_of(Held, 1)]
    suspect: Name
    evidence: Name
    reason: Words
    diverged_step: U64 = 0
    differs: Name = ""
    compared_step: U64 = 0
    compared_digest: Name = ""


@message
class Finished(Message):
    """The worker has committed the job's last step, or its last one before a stop.

    `held_generation` committed that step; `generation` is the one that agreed on the digest.
    """

    job: Name
    generation: Generation
    held_generation: Generation
    step: U64
    digest: Name
    result: Map


@message
class Failed(Message):
    """The job cannot go on here, by its own code, data or numbers, or by this host's fault.

    `step`: committed steps of the state that it held then; 0 while it warmed up.
    """

    job: Name
    reason: Words
    traceback: Text
    step: U64 = 0


@message
class Save(Message):
    """Write the state of this key, which the worker holds, or can commit, as a checkpoint.

    Answered by CHECKPOINT_SAVED, or by NOTICE `checkpoint_failed`.
    """

    job: Name
    generation: Generation
    step: U64


@message
class Release(Message):
    """The job is over for this worker; it starts afresh and registers again."""

    job: Name
    state: Name
    reason: Words


@message
class Leave(Message):
    """The worker wants to leave at the next step boundary; it is released when it may go."""

    reason: Words


@message
class Signal(Message):
    """Coordinator to worker: send yourself this signal (KILL, TERM or STOP)."""

    signal: Name
