"""Worker and coordinator: membership of the ring, its starting state, and its end."""

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
    Hosts,
    Map,
    MemberName,
    Name,
    Names,
    Octets,
    Seconds,
    Shards,
    Text,
    Words,
    list_of,
)
from dtd.wire.messages.registry import Message, message

MAX_WORLD: Final = 64
MAX_BRANCHES: Final = 32
MAX_HELD: Final = 8
MAX_MEMORY_PARTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of a roster; its position in the list is its rank.

    `host`: the first of its addresses to try; `others`: the next ones, best first.
    `holds`: it has the state that the generation starts from, and serves it to members without it.
    `serves`: it is a parameter server: it owns a part of the state and trains no rows.  Servers are
    the last entries.
    """

    name: Name
    incarnation: U64
    host: Host
    port: U16
    holds: Flag
    serves: Flag = False
    others: Hosts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A state of a job that a worker holds.

    `where` is "memory", "checkpoint" or "none"; `generation` 0 and `step` 0 mean nothing trained.
    `part`: which shards of a sharded state (`ShardSet.to_wire`); empty: all of it.
    """

    job: Name
    generation: Generation
    step: U64
    digest: Name
    where: Name
    part: Shards = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """States of generations < `before` that a job has left by returning to (`generation`, `step`).

    They are of a later generation than that one, or have more steps.
    """

    generation: Generation
    step: U64
    before: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """Memory of a part of the training ("parameters", "activations"), as measured in a step.

    `predicted_bytes` is what the strategy needs for it by calculation; 0 where it cannot be said.
    """

    name: Name
    measured_bytes: U64
    predicted_bytes: U64 = 0


@message
class JoinJob(Message):
    """A process that was started by hand asks for the job of its script, before REGISTER.

    `spec` is its job with `elastic.by_hand`.  An active job of the same name is joined, one that
    has ended is continued from its newest checkpoint, and without either a new one begins.
    """

    spec: Map


@message
class Joined(Message):
    """The job that the process is to register for."""

    job: Name


@message
class Register(Message):
    """A worker registers, with the generation in which it still takes part, if any.

    `phase` is what it does in that generation: "forming", "running", "frozen" or "finished".
    `identity` distinguishes its job from one with the same id of another store; `roster`,
    `held_generation` and `held_step` are those of its ASSIGN.  `instance` names its state
    directory. `last_end` says how the previous process ended; empty if it ended normally.
    `serves`: it is a parameter server, which trains no rows.  `clock_s` is the worker's monotonic
    clock, by which the tickets for its data port expire.  `joined` is the only job that a process
    which was started by hand takes part in; empty for a worker that takes any.  `instructions`: the
    best that its processor has, as ATEN_CPU_CAPABILITY names them; empty on GPUs and other kinds.
    `others`: further addresses of its host on which it listens, best first.
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
    serves: Flag = False
    clock_s: Seconds = 0.0
    joined: Name = ""
    instructions: Name = ""
    others: Hosts = ()


@message
class Registered(Message):
    """The coordinator has registered the worker.

    `refused`: why the worker takes no part in any job; empty when it does.
    """

    heartbeat_interval_s: Seconds
    heartbeat_timeout_s: Seconds
    secret: Octets = field(default=b"", repr=False)
    refused: Words = ""


@message
class Heartbeat(Message):
    """The worker's process is alive; its counters show whether training advances.

    `own_s`: mean seconds of a step in which this worker works, not waiting for others.
    `stalled_s`: since its training thread last made progress, 0 while it waits for the ring;
    beyond `patience_s` it counts as stuck, and `where` names the line of code.  `still_s` is
    the part of it without any sign of activity, and `evidence` names the activity seen.
    `rtt_s` and `link_bytes_per_s` describe the link to its next neighbour; bytes count from the
    start of the process; a negative `gpu_use` is unknown.  `hop_bytes`: what that link carries in
    the time of a hop (protocol.md, "Two ways round"), as last known; 0: unknown.  `memory` was
    measured in an early step of the generation; empty before it.  `rows`: its own ones in a step.
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
    plain_bytes: U64 = 0
    received_bytes: U64 = 0
    rtt_s: Seconds = 0.0
    link_bytes_per_s: F64 = 0.0
    gpu_use: F64 = -1.0
    gpu_memory_bytes: U64 = 0
    still_s: Seconds = 0.0
    evidence: Words = ""
    memory: Annotated[tuple[MemoryPart, ...], list_of(MemoryPart, MAX_MEMORY_PARTS)] = ()
    hop_bytes: U32 = 0
    rows: U64 = 0


@message
class HeartbeatAck(Message):
    """The coordinator received the heartbeat; until then the worker sends no other one."""


@message
class Prepare(Message):
    """Warm up for a job: import, build the model, open the data.

    `package` names the task's code that was shipped with the job; empty: the installed code.
    `identity` is the job's permanent identity across stores and directories (`dtd.job.terms`).
    `instructions`: those with which all that compute updates do so; empty: each its own.
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
    instructions: Name = ""


@message
class Warmed(Message):
    """The worker is ready for a generation of the job.

    `held` names the newest state first; only workers of a sharded job name more than one.
    `numerics_fingerprint`: empty for a worker that copies updates from parameter servers.
    `task_digest`: hash of the source of the task's package, empty for a built-in task.
    `environment`: software and hardware, each as `KEY=VALUE`.
    `committed_generation`, `committed_step`: the last commit by an earlier process of the worker,
    whose state may be gone; 0 if it is unknown.
    `batches`: how the job's code has a step's rows cut.
    """

    job: Name
    dataset_rows: U64
    dataset_fingerprint: Name
    plan_digest: Name
    numerics_fingerprint: Name
    parameters: U64
    steps_total: U64
    held: Annotated[tuple[Held, ...], list_of(Held, MAX_HELD)]
    task_digest: Name = ""
    environment: Names = ()
    committed_generation: Generation = 0
    committed_step: U64 = 0
    batches: Name = ""


@message
class Assign(Message):
    """A new generation: its roster, this worker's rank in it, and the state it starts from.

    A state is named by the generation that committed its last step, and by its number of steps.
    `strides` is the sum of the powers of two at which ranks have links (protocol.md, "Tree"); 0:
    all of them.  `whole_bytes`: most bytes of a bucket that travels whole.
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
    strides: U64 = 0
    whole_bytes: U32 = 0


@message
class Running(Message):
    """The worker's ring is up, its state equals that of all ranks, and it trains."""

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

    `held` names the state in memory first, then, in a sharded job, those of its checkpoints.
    (`prepared_generation`, `prepared_step`) names the state that it would hold after committing
    what it has prepared, and equals the held state when nothing is prepared.  `evidence` says how
    it lost `suspect`: "ended" (its lifeline was cut), "reset", "silent", "unreachable", "corrupt"
    or "diverged"; it is empty when the generation ended normally.  If it diverged, states differ
    after `diverged_step` steps, and first in the entry `differs`, if that is known.
    """

    job: Name
    generation: Generation
    roster_id: U64
    prepared_generation: Generation
    prepared_step: U64
    held: Annotated[tuple[Held, ...], list_of(Held, MAX_HELD)]
    suspect: Name
    evidence: Name
    reason: Words
    diverged_step: U64 = 0
    differs: Name = ""


@message
class Finished(Message):
    """The worker has committed the job's last step, or the last one before a stop.

    `held_generation` committed that step; `generation` is the one that agreed on the digest.
    `part`: which shards of the state it holds; empty: all of it.  `stopped`: the ranks have agreed
    to end here because they were told to stop, not because the job's task or steps have ended.
    """

    job: Name
    generation: Generation
    held_generation: Generation
    step: U64
    digest: Name
    result: Map
    part: Shards = ()
    stopped: Flag = False


@message
class Failed(Message):
    """The job cannot continue here because of its own code, data or numbers, or this host.

    `step`: committed steps of the state that the worker held; 0 while it warmed up.  `of_code`: the
    code is at fault on any host.
    """

    job: Name
    reason: Words
    traceback: Text
    step: U64 = 0
    of_code: Flag = False


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
    """The job is over for this worker; it restarts its process and registers again."""

    job: Name
    state: Name
    reason: Words


@message
class Leave(Message):
    """The worker wants to leave at the next step boundary; it is released when it may leave."""

    reason: Words


@message
class Signal(Message):
    """Coordinator to worker: send yourself this signal (KILL, TERM or STOP)."""

    signal: Name
