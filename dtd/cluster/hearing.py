"""Checks workers' reports: a report counts only where it can be true.

A credential admits a worker; it does not make its reports true.  Each report is judged by one rule
of the table at the end of this file, based on what the coordinator itself has told that process:
the jobs it was given, the generations it was assigned to, and its ranks there.

    counts       an honest worker in this state may send it
    late         it was true when it was sent, or concerns something that is over: ignored silently
    out of turn  it was not requested, and no rule explains it: dropped, counted and reported
    false        no honest worker can ever have sent it: the connection is closed as well

The rules are listed in protocol.md, "Who may say what".  `dtd.cluster` acts on reports that
count; the shell consults this module before it acts on any.  Pure; the counters are part of the
cluster's state.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from dtd.cluster import branches, doubt
from dtd.cluster import roster as choice
from dtd.cluster.events import Disconnect
from dtd.cluster.records import Job, Worker
from dtd.cluster.state import ClusterState
from dtd.cluster.state_records import Tally
from dtd.cluster.transitions import MEMBERS, WorkerState
from dtd.engine.shards import ShardSet
from dtd.errors import ProtocolError
from dtd.wire import messages as m

TELL_EVERY_S: Final = 60.0
"""Minimum interval between two incidents about dropped reports of one worker."""

MAX_TALLIES: Final = 256


class Word(Enum):
    """The ways in which a report is judged."""

    COUNTS = "counts"
    LATE = "late"
    OUT_OF_TURN = "out of turn"
    FALSE = "false"


class Verdict(NamedTuple):
    """The judgement of a report, and its reason."""

    word: Word
    why: str = ""


COUNTS: Final = Verdict(Word.COUNTS)
LATE: Final = Verdict(Word.LATE)

Rule = Callable[[ClusterState, Worker, Any], Verdict]


def judge(cluster: ClusterState, name: str, message: m.Message) -> Verdict:
    """Judge a message of a registered worker as of now; changes nothing."""
    rule = _RULES.get(type(message))
    if rule is None:
        return COUNTS
    worker = cluster.workers.get(name)
    if worker is None:  # it was rejected, and has not read the rejection yet
        return LATE
    if worker.stray:
        return COUNTS if isinstance(message, m.Heartbeat) else LATE
    return rule(cluster, worker, message)


def turn_away(cluster: ClusterState, name: str, message: m.Message, verdict: Verdict) -> None:
    """Count a dropped report, report an incident at intervals, and disconnect if it is false."""
    if verdict.word is Word.LATE:
        return
    tally = _tally(cluster, name)
    tally.dropped += 1
    if tally.told_at is None or cluster.now - tally.told_at >= TELL_EVERY_S:
        number, tally.dropped, tally.told_at = tally.dropped, 0, cluster.now
        what = type(message).__name__
        more = f"; {number} such messages since the last notice" if number > 1 else ""
        text = f"what {name} says does not count: {what}: {verdict.why}{more}"
        if verdict.word is Word.FALSE:
            cluster.incident("report_false", text, worker=name, dropped=number)
        else:
            cluster.incident("report_dropped", text, worker=name, dropped=number)
    if verdict.word is Word.FALSE:
        cluster.emit(Disconnect(name=name, reason=f"{type(message).__name__}: {verdict.why}"))


def _tally(cluster: ClusterState, name: str) -> Tally:
    if name not in cluster.trust.tallies and len(cluster.trust.tallies) >= MAX_TALLIES:
        del cluster.trust.tallies[next(iter(cluster.trust.tallies))]
    return cluster.trust.tallies.setdefault(name, Tally())


def false(why: str) -> Verdict:
    """The verdict on a report that cannot be true, for the reason `why`."""
    return Verdict(Word.FALSE, why)


def _out_of_turn(why: str) -> Verdict:
    return Verdict(Word.OUT_OF_TURN, why)


# --- shared by most rules ------------------------------------------------------------------------


def _its_job(worker: Worker, job_id: str) -> Verdict:
    """A worker may report only about jobs that it was told to prepare for, or registered with."""
    if job_id in worker.participation.jobs:
        return COUNTS
    return _out_of_turn("it was not told to prepare for that job")


def _active(cluster: ClusterState, job_id: str) -> Job | None:
    job = cluster.job
    return job if job is not None and job.id == job_id else None


def _its_generation(worker: Worker, generation: int) -> Verdict:
    """Whether a report concerns the worker's newest generation, or an older one and is late."""
    if generation > worker.participation.generation:
        return false(f"it was never a member of generation {generation}")
    return LATE if generation < worker.participation.generation else COUNTS


def _takes_part(cluster: ClusterState, worker: Worker) -> bool:
    """Whether the worker trains in the newest generation, or in one that may be the newest."""
    in_doubt = cluster.job is not None and doubt.lasts(cluster, cluster.job)
    return worker.state in MEMBERS or (worker.reconnection.returning and in_doubt)


def _first(*verdicts: Verdict) -> Verdict:
    """The first verdict that is not COUNTS; COUNTS if there is none."""
    return next((one for one in verdicts if one.word is not Word.COUNTS), COUNTS)


def _not_sets(*parts: tuple[int, ...]) -> str:
    """Why these do not describe sets of shards; empty if they do."""
    try:
        for part in parts:
            ShardSet.from_wire(part)
    except ProtocolError as error:
        return error.message
    return ""


# --- the rules ---------------------------------------------------------------------------------


def _heartbeat(cluster: ClusterState, worker: Worker, message: m.Heartbeat) -> Verdict:
    job = _active(cluster, message.job)
    if job is None or message.job not in worker.participation.jobs:
        return COUNTS  # a sign of life; its figures do not concern the active job
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    return COUNTS


def _warmed(cluster: ClusterState, worker: Worker, message: m.Warmed) -> Verdict:
    if any(one.where == "memory" for one in message.held):
        return false("who warms up holds nothing in memory yet")
    not_sets = _not_sets(*(one.part for one in message.held))
    if not_sets:
        return false(not_sets)
    said = worker.holdings.warmed
    why = choice.disagreement(said, message) if said is not None else ""
    if why:
        return false(f"it has said otherwise before: {why}")
    return _its_job(worker, message.job) if _active(cluster, message.job) else LATE


def _running(cluster: ClusterState, worker: Worker, message: m.Running) -> Verdict:
    verdict = _of_a_member(cluster, worker, message.job, message.generation)
    if verdict.word is not Word.COUNTS:
        return verdict
    if worker.state is not WorkerState.FORMING or message.generation != cluster.run.generation:
        return LATE
    if message.step != cluster.run.start_step:
        start = f"step {cluster.run.start_step}, not {message.step}"
        return false(f"generation {cluster.run.generation} starts from {start}")
    return COUNTS


def _of_a_member(cluster: ClusterState, worker: Worker, job_id: str, generation: int) -> Verdict:
    """The checks of reports that only a member that has warmed up may send."""
    if _active(cluster, job_id) is None:
        return LATE
    verdict = _first(_its_job(worker, job_id), _its_generation(worker, generation))
    if verdict.word is not Word.COUNTS:
        return verdict
    called_back = worker.state is WorkerState.WARMING and worker.reconnection.returning
    if not (worker.state in MEMBERS or called_back):
        return LATE  # no longer a member, or a repeated report
    if worker.holdings.warmed is None:
        return _out_of_turn("it has not said with which data and model it trains (WARMED)")
    return COUNTS


def _leaving(
    cluster: ClusterState, worker: Worker, message: m.Frozen | m.Finished, why_untrue: str
) -> Verdict:
    """FROZEN and FINISHED: only from current members and from workers asked to leave an old one."""
    verdict = _of_a_member(cluster, worker, message.job, message.generation)
    return _first(verdict, false(why_untrue) if why_untrue else COUNTS)


def _frozen(cluster: ClusterState, worker: Worker, message: m.Frozen) -> Verdict:
    return _leaving(cluster, worker, message, _untrue_of(_active(cluster, message.job), message))


def _untrue_of(job: Job | None, message: m.Frozen) -> str:
    """Why no worker can hold, or have compared, the reported states; empty if one can."""
    not_sets = _not_sets(*(one.part for one in message.held))
    if not_sets:
        return not_sets
    if any(one.where == "memory" for one in message.held[1:]):
        return "a worker holds one state in memory at most, and names it first"
    for one in message.held[:1]:
        impossible = _impossible(job, one.generation, one.step)
        if impossible:
            return impossible
        key = (one.generation, one.step)
        prepared = (message.prepared_generation, message.prepared_step)
        if one.generation > message.generation and one.where == "memory":
            return f"generation {message.generation} cannot have committed in {one.generation}"
        next_step = _next_step(job, one.step)
        after = one.generation <= prepared[0] <= message.generation and prepared[1] == next_step
        if prepared != key and not (after and one.where == "memory"):
            return f"nobody who holds {key} has prepared {prepared}"
    return ""


def _next_step(job: Job | None, step: int) -> int:
    """Number of committed steps of the state that follows the one with `step` steps."""
    return job.rounds.end(step, job.total_steps) if job is not None else step + 1


def _impossible(job: Job | None, generation: int, step: int) -> str:
    why = branches.why_impossible((generation, step), job) if job is not None else ""
    return f"no state has step {step} of generation {generation}: {why}" if why else ""


def _finished(cluster: ClusterState, worker: Worker, message: m.Finished) -> Verdict:
    job = _active(cluster, message.job)
    why = _impossible(job, message.held_generation, message.step)
    why = why or _not_sets(message.part)
    if message.held_generation > message.generation:
        why = f"generation {message.generation} cannot have committed in {message.held_generation}"
    return _leaving(cluster, worker, message, why)


def _figures(cluster: ClusterState, worker: Worker, job_id: str) -> Verdict:
    """The checks of a step's figures, which only rank 0 reports."""
    job = _active(cluster, job_id)
    if job is None:
        return LATE
    verdict = _its_job(worker, job_id)
    if verdict.word is not Word.COUNTS:
        return verdict
    if not worker.participation.generation or worker.participation.rank:
        return false("figures of a step come from rank 0 of a generation")
    return COUNTS if _takes_part(cluster, worker) else LATE


def _progress(cluster: ClusterState, worker: Worker, message: m.Progress) -> Verdict:
    if (
        _active(cluster, message.job) is not None
        and message.generation < worker.participation.generation
    ):
        return LATE  # it may have had another rank in that generation
    verdict = _figures(cluster, worker, message.job)
    return _first(verdict, _its_generation(worker, message.generation))


def _evaluated(cluster: ClusterState, worker: Worker, message: m.Evaluated) -> Verdict:
    return _figures(cluster, worker, message.job)


def _failed(cluster: ClusterState, worker: Worker, message: m.Failed) -> Verdict:
    return _its_job(worker, message.job) if _active(cluster, message.job) else LATE


def _notice(cluster: ClusterState, worker: Worker, message: m.Notice) -> Verdict:
    return _its_job(worker, message.job) if _active(cluster, message.job) else LATE


def _output(cluster: ClusterState, worker: Worker, message: m.JobOutput) -> Verdict:
    """A job's last output may arrive after the job has ended."""
    del cluster
    verdict = _its_job(worker, message.job)
    if verdict.word is Word.COUNTS and message.rank not in worker.participation.ranks:
        return false(f"it never was rank {message.rank}")
    return verdict


def _saved(cluster: ClusterState, worker: Worker, message: m.CheckpointSaved) -> Verdict:
    """Written in the background: the report may arrive generations later, or after the end."""
    del cluster
    verdict = _its_job(worker, message.job)
    if verdict.word is not Word.COUNTS:
        return verdict
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    not_sets = _not_sets(message.part)
    return false(not_sets) if not_sets else COUNTS


def _agreed(cluster: ClusterState, worker: Worker, message: m.Agreed) -> Verdict:
    """AGREED: from every member of the newest generation, even after leaving it."""
    job = _active(cluster, message.job)
    if job is None:
        return LATE
    verdict = _its_job(worker, message.job)
    if verdict.word is not Word.COUNTS:
        return verdict
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    newest = worker.participation.generation == job.generation and worker.name in job.roster
    return COUNTS if newest else LATE


_RULES: Final[dict[type[Any], Rule]] = {
    m.Heartbeat: _heartbeat,
    m.Warmed: _warmed,
    m.Running: _running,
    m.Frozen: _frozen,
    m.Finished: _finished,
    m.Failed: _failed,
    m.Progress: _progress,
    m.Evaluated: _evaluated,
    m.Notice: _notice,
    m.JobOutput: _output,
    m.CheckpointSaved: _saved,
    m.Agreed: _agreed,
}
"""Messages without a rule always pass: PROBED, MEASURED and CHECKPOINT_DROPPED answer requests and
have an effect only while a request is pending; REGISTER, LEAVE, GET_PACKAGE and GET_PARTS concern
only the sender."""
