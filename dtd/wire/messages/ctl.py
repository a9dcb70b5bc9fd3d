"""dtdctl and coordinator: one request, one RESULT."""

from __future__ import annotations

from dtd.wire.fields import F64, U16, U32, U64, Flag, Map, Name, Text
from dtd.wire.messages.registry import message


@message(0x40)
class SubmitJob:
    """Queue a job; the spec was validated by the sender and is validated again.

    `package` is the sha256 of the task's package, which PUT_PACKAGE has brought before.
    `from_mode` says what is taken over of the other job: "resume" everything, "weights" parameters
    and buffers; empty lets the coordinator choose by how that job has ended.  `weights` is the
    sha256 of a file of weights to begin with, which PUT_PACKAGE has brought.  Without `strict` only
    those weights are taken that fit.
    """

    spec: Map
    from_job: Name = ""
    from_step: U64 = 0
    package: Name = ""
    from_mode: Name = ""
    weights: Name = ""
    strict: Flag = True


@message(0x41)
class GetStatus:
    """Ask for the status object (schema 1)."""


@message(0x42)
class WaitJob:
    """Ask to be answered when the job has ended."""

    job: Name


@message(0x43)
class CancelJob:
    """Stop the job at its next step boundary, keeping a checkpoint."""

    job: Name


@message(0x44)
class KillWorker:
    """Send a signal to a worker's process: KILL, TERM or STOP."""

    name: Name
    signal: Name


@message(0x45)
class DrainWorker:
    """Let a worker leave at the next step boundary."""

    name: Name


@message(0x46)
class ListJobs:
    """Ask for all jobs, newest first."""


@message(0x56)
class ShowJob:
    """Ask for everything that is known of one job."""

    job: Name


@message(0x57)
class Delete:
    """Delete an ended job with its checkpoints, or with `step` its checkpoints of that step."""

    job: Name
    step: U64 = 0


@message(0x47)
class ReadLogs:
    """Ask for what a job's own code printed, from a cursor on."""

    job: Name
    after: U64 = 0


@message(0x48)
class ReadEvents:
    """Ask for incidents, from a cursor on; with `follow` wait until there is one."""

    after: U64 = 0
    follow: Flag = False


@message(0x58)
class ReadAudit:
    """Ask who did what, from a cursor on; of everybody and everything unless it is narrowed down.

    `who`: a name, a certificate's serial, or ROLE/NAME.  `what`: part of the name of a request.
    """

    after: U64 = 0
    since_s: F64 = 0.0
    who: Name = ""
    what: Name = ""


@message(0x49)
class ListCheckpoints:
    """Ask for known checkpoints, of one job or of all; with `tickets` also to fetch them."""

    job: Name = ""
    tickets: Flag = False


@message(0x4E)
class GetFigures:
    """Ask for the recent history of the job: losses, rates, links."""


@message(0x55)
class Examine:
    """Have something measured, see MEASURE; without `worker` the coordinator tells of itself.

    `force`: measure bandwidth though a job runs.
    """

    what: Name
    worker: Name = ""
    peer: Name = ""
    spec: Map
    worlds: U16 = 0
    package: Name = ""
    force: Flag = False


@message(0x4C)
class ResumeJob:
    """Let a waiting job go on without those who may hold a newer state and are away."""

    job: Name


@message(0x50)
class CreateToken:
    """Make a token with which hosts or people can join; `life_s` 0: until it is used up or revoked.

    `names`: who can join with it, each once, with commas between; empty: whoever has it.
    `replaces`: a credential of that name that counts gives way.
    """

    role: Name
    life_s: U32
    uses: U16 = 1
    names: Text = ""
    replaces: Flag = False


@message(0x51)
class ListTokens:
    """Ask for all tokens, without their secrets."""


@message(0x52)
class RevokeToken:
    """Nobody can join with this token any more; who has joined stays."""

    id: Name


@message(0x53)
class ListCredentials:
    """Ask for all credentials that were issued."""


@message(0x54)
class RevokeCredential:
    """Take back a credential, or all of a name: its connections end, its workers are evicted."""

    name: Name


@message(0x4D)
class PutPackage:
    """A piece of a task's package as payload; without one it asks how much is there.

    `kind` "weights": of a file of weights.
    """

    digest: Name
    size: U64
    offset: U64
    kind: Name = ""


@message(0x4A)
class Result:
    """The answer to a dtdctl request; the payload is a msgpack map.

    `renew`: it is time to renew the certificate with which the connection was opened.
    """

    renew: Flag = False


@message(0x59)
class ShowAuthority:
    """Ask for the authority, and how far its replacement is."""


@message(0x5A)
class RotateAuthority:
    """Begin to replace the authority's key; or `finish` it, whoever has not renewed by now.

    `overlap_s`: how long both count at most; 0: as long as a credential lives.
    """

    overlap_s: U32 = 0
    finish: Flag = False


CtlMessage = (
    SubmitJob
    | GetStatus
    | WaitJob
    | CancelJob
    | KillWorker
    | DrainWorker
    | ListJobs
    | ShowJob
    | Delete
    | ReadLogs
    | ReadEvents
    | ReadAudit
    | ListCheckpoints
    | GetFigures
    | Examine
    | ResumeJob
    | CreateToken
    | ListTokens
    | RevokeToken
    | ListCredentials
    | RevokeCredential
    | ShowAuthority
    | RotateAuthority
    | PutPackage
    | Result
)
