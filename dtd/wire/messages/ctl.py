"""dtdctl and coordinator: one request, one RESULT."""

from __future__ import annotations

from dtd.wire.fields import F64, U16, U32, U64, Flag, Map, Name, Names, Seconds, Text
from dtd.wire.messages.registry import Message, message


@message
class SubmitJob(Message):
    """Queue a job; the spec was validated by the sender and is validated again.

    `package` is the sha256 of the task's package, which PUT_PACKAGE uploaded before.
    `from_mode` says what is taken over from the other job: "resume" everything, "weights"
    parameters and buffers; empty lets the coordinator choose, by how that job ended.  `weights` is
    the sha256 of a file of initial weights, which PUT_PACKAGE uploaded.  Without `strict` only the
    weights that fit are used.
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
    """Wait for the end of a job: the answer is sent when it has ended."""

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
    """List all jobs, newest first, or those with a tag."""

    tag: Name = ""


@message
class ShowJob(Message):
    """Ask for everything known about one job."""

    job: Name


@message
class AnnotateJob(Message):
    """Add tags to a job, remove some, or with `sets_note` replace its note."""

    job: Name
    add: Names = ()
    remove: Names = ()
    note: Text = ""
    sets_note: Flag = False


@message
class CompareJobs(Message):
    """Ask in what jobs differ and how they did.

    `names`: only these figures; empty: the loss and those of evaluations.  `points`: the most
    points of a curve.
    """

    jobs: Names
    names: Names = ()
    points: U32 = 60


@message
class BeginSweep(Message):
    """Begin a sweep; its spec was validated by the sender and is validated again.

    `package` is the sha256 of the task's package, which PUT_PACKAGE uploaded before.
    """

    spec: Map
    package: Name = ""


@message
class ShowSweep(Message):
    """Ask for everything known about a sweep: trials, the best one, importance of settings."""

    sweep: Name


@message
class CancelSweep(Message):
    """Cancel a sweep and the jobs of its trials."""

    sweep: Name


@message
class ListSweeps(Message):
    """List the newest sweeps, newest first."""


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
    """Ask for the audit log from a cursor on, optionally filtered.

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
    """Ask for the times of a step of a job's workers, and for its links.

    `job`: its id; empty: of the first active job.
    """

    job: Name = ""


@message
class GetMetrics(Message):
    """Ask for a job's remembered figures, thinned out to at most `points` for each.

    `names`: only these; empty: all.  `workers`: those of workers and links, too.  `to_step` 0: up
    to the newest.  `after`: the cursor of the answer before.
    """

    job: Name
    names: Names = ()
    workers: Flag = False
    from_step: U64 = 0
    to_step: U64 = 0
    points: U32 = 1000
    after: U32 = 0


@message
class OpenWeb(Message):
    """Ask where the web page is, and for a code with which the caller can log in there once."""


@message
class Examine(Message):
    """Request a measurement, see MEASURE; without `worker` the coordinator measures itself.

    `force`: measure bandwidth even while a job runs.
    """

    what: Name
    worker: Name = ""
    peer: Name = ""
    spec: Map
    worlds: U16 = 0
    package: Name = ""
    force: Flag = False


@message
class Profile(Message):
    """Record up to `steps` steps of the running job on all its workers, within `limit_s`.

    With `file`: tickets for the last profile, which has this name; nothing is recorded.
    """

    job: Name
    steps: U16 = 0
    limit_s: Seconds = 0.0
    file: Name = ""


@message
class ResumeJob(Message):
    """Let a waiting job continue without waiting for absent workers that may hold newer state."""

    job: Name


@message
class CreateToken(Message):
    """Create a token for joining; `life_s` 0: valid until it is used up or revoked.

    `names`: the names that may join with it, each once, separated by commas; empty: any name.
    `replaces`: a valid credential of that name is revoked in favour of the new one.
    """

    role: Name
    life_s: U32
    uses: U16 = 1
    names: Text = ""
    replaces: Flag = False


@message
class ListTokens(Message):
    """List all tokens, without their secrets."""


@message
class RevokeToken(Message):
    """Revoke a token: it admits no further member; existing members stay."""

    id: Name


@message
class ListCredentials(Message):
    """List all credentials that were issued."""


@message
class RevokeCredential(Message):
    """Revoke a credential, or all of a name: its connections end, its workers are evicted."""

    name: Name


@message
class PutPackage(Message):
    """Upload a piece of a task's package as payload; without payload, ask how much has arrived.

    `kind` "weights": a piece of a file of weights.
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
    """Ask for the authority."""
