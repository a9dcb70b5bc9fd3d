"""dtdctl and coordinator: one request, one RESULT."""

from __future__ import annotations

from dtd.wire.fields import F64, U16, U32, U64, Flag, Map, Name, Text
from dtd.wire.messages.registry import Message, message


@message
class SubmitJob(Message):
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


@message
class GetStatus(Message):
    """Ask for the status object (schema 1)."""


@message
class WaitJob(Message):
    """Ask to be answered when the job has ended."""

    job: Name


@message
class CancelJob(Message):
    """Stop the job at its next step boundary, keeping a checkpoint."""

    job: Name


@message
class KillWorker(Message):
    """Send a signal to a worker's process: KILL, TERM or STOP."""

    name: Name
    signal: Name


@message
class DrainWorker(Message):
    """Let a worker leave at the next step boundary."""

    name: Name


@message
class ListJobs(Message):
    """Ask for all jobs, newest first."""


@message
class ShowJob(Message):
    """Ask for everything that is known of one job."""

    job: Name


@message
class Delete(Message):
    """Delete an ended job with its checkpoints, or with `step` its checkpoints of that step."""

    job: Name
    step: U64 = 0


@message
class ReadLogs(Message):
    """Ask for what a job's own code printed, from a cursor on."""

    job: Name
    after: U64 = 0


@message
class ReadEvents(Message):
    """Ask for incidents, from a cursor on; with `follow` wait until there is one."""

    after: U64 = 0
    follow: Flag = False


@message
class ReadAudit(Message):
    """Ask who did what, from a cursor on; of everybody and everything unless it is narrowed down.

    `who`: a name, a certificate's serial, or ROLE/NAME.  `what`: part of the name of a request.
    """

    after: U64 = 0
    since_s: F64 = 0.0
    who: Name = ""
    what: Name = ""


@message
class ListCheckpoints(Message):
    """Ask for known checkpoints, of one job or of all; with `tickets` also to fetch them."""

    job: Name = ""
    tickets: Flag = False


@message
class GetFigures(Message):
    """Ask for the recent history of the job: losses, rates, links."""


@message
class Examine(Message):
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


@message
class ResumeJob(Message):
    """Let a waiting job go on without those who may hold a newer state and are away."""

    job: Name


@message
class CreateToken(Message):
    """Make a token with which hosts or people can join; `life_s` 0: until it is used up or revoked.

    `names`: who can join with it, each once, with commas between; empty: whoever has it.
    `replaces`: a credential of that name that counts gives way.
    """

    role: Name
    life_s: U32
    uses: U16 = 1
    names: Text = ""
    replaces: Flag = False


@message
class ListTokens(Message):
    """Ask for all tokens, without their secrets."""


@message
class RevokeToken(Message):
    """Nobody can join with this token any more; who has joined stays."""

    id: Name


@message
class ListCredentials(Message):
    """Ask for all credentials that were issued."""


@message
class RevokeCredential(Message):
    """Take back a credential, or all of a name: its connections end, its workers are evicted."""

    name: Name


@message
class PutPackage(Message):
    """A piece of a task's package as payload; without one it asks how much is there.

    `kind` "weights": of a file of weights.
    """

    digest: Name
    size: U64
    offset: U64
    kind: Name = ""


@message
class Result(Message):
    """The answer to a dtdctl request; the payload is a msgpack map.

    `renew`: it is time to renew the certificate with which the connection was opened.
    """

    renew: Flag = False


@message
class ShowAuthority(Message):
    """Ask for the authority, and how far its replacement is."""


@message
class RotateAuthority(Message):
    """Begin to replace the authority's key; or `finish` it, whoever has not renewed by now.

    `overlap_s`: how long both count at most; 0: as long as a credential lives.
    """

    overlap_s: U32 = 0
    finish: Flag = False
