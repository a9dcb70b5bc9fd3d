"""Who may say what, and when: what a worker says counts only where it can be true.

A credential lets a worker in; it does not make what the worker says true.  Each report is judged
by one rule of the table below, from what the coordinator itself has told that process: the jobs it
was given, the generations it was assigned to, its ranks there, and how many steps the job has.

    counts       it is what an honest worker in this place may say
    late         it was true when it was said, or speaks of what is over: passed over in silence
    out of turn  nobody has asked for it, and no rule explains it: dropped, counted, told of
    false        no honest worker can ever have said it: that costs the connection as well

The table is in protocol.md, "Who may say what".  What counts is acted on by
`dtd.core.membership`, and by the shell only after it has asked here.  Pure; counts in the books.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from dtd.core.membership import branches
from dtd.core.membership.events import Disconnect
from dtd.core.membership.records import Job, Worker
from dtd.core.membership.state import ClusterState
from dtd.core.membership.state_records import Tally
from dtd.core.membership.transitions import MEMBERS, WorkerState
from dtd.core.trust import doubt
from dtd.wire import messages as m

TELL_EVERY_S: Final = 60.0
"""How often an operator is told of one worker that speaks out of turn."""

MAX_TALLIES: Final = 256


class Word(Enum):
    """What a report is worth."""

    COUNTS = "counts"
    LATE = "late"
    OUT_OF_TURN = "out of turn"
    FALSE = "false"


class Verdict(NamedTuple):
    """What a report is worth, and why."""

    word: Word
    why: str = ""


COUNTS: Final = Verdict(Word.COUNTS)
LATE: Final = Verdict(Word.LATE)

Rule = Callable[[ClusterState, Worker, Any], Verdict]


def judge(books: ClusterState, name: str, message: m.Message) -> Verdict:
    """What a registered worker's message is worth now; changes nothing."""
    rule = _RULES.get(type(message))
    if rule is None:
        return COUNTS
    worker = books.workers.get(name)
    if worker is None:  # it was not let in, and has yet to read that
        return LATE
    if worker.stray:
        return COUNTS if isinstance(message, m.Heartbeat) else LATE
    return rule(books, worker, message)


def turn_away(books: ClusterState, name: str, message: m.Message, verdict: Verdict) -> None:
    """Count what is dropped and tell of it now and then; end the connection of who lies."""
    if verdict.word is Word.LATE:
        return
    tally = _tally(books, name)
    tally.dropped += 1
    if tally.told_at is None or books.now - tally.told_at >= TELL_EVERY_S:
        number, tally.dropped, tally.told_at = tally.dropped, 0, books.now
        what = type(message).__name__
        more = f"; {number} such messages since the last notice" if number > 1 else ""
        text = f"what {name} says does not count: {what}: {verdict.why}{more}"
        if verdict.word is Word.FALSE:
            books.incident("report_false", text, worker=name, dropped=number)
        else:
            books.incident("report_dropped", text, worker=name, dropped=number)
    if verdict.word is Word.FALSE:
        books.emit(Disconnect(name=name, reason=f"{type(message).__name__}: {verdict.why}"))


def _tally(books: ClusterState, name: str) -> Tally:
    if name not in books.trust.tallies and len(books.trust.tallies) >= MAX_TALLIES:
        del books.trust.tallies[next(iter(books.trust.tallies))]
    return books.trust.tallies.setdefault(name, Tally())


def false(why: str) -> Verdict:
    """It cannot be true, for this reason."""
    return Verdict(Word.FALSE, why)


def _out_of_turn(why: str) -> Verdict:
    return Verdict(Word.OUT_OF_TURN, why)


# --- what most rules have in common --------------------------------------------------------------


def _its_job(worker: Worker, job_id: str) -> Verdict:
    """Somebody speaks of a job only when it was told to prepare for it, or came with it."""
    if job_id in worker.participation.jobs:
        return COUNTS
    return _out_of_turn("it was not told to prepare for that job")


def _active(books: ClusterState, job_id: str) -> Job | None:
    job = books.job
    return job if job is not None and job.id == job_id else None


def _too_far(job: Job | None, step: int) -> str:
    """Why a job cannot have so many steps; empty when it can, or its end is not known."""
    if job is None or not 0 < job.total_steps < step:
        return ""
    return f"it speaks of step {step}, and {job.id} has {job.total_steps}"


def _its_generation(worker: Worker, generation: int) -> Verdict:
    """A worker speaks of the newest generation that it takes part in, or is late."""
    if generation > worker.participation.generation:
        return false(f"it was never a member of generation {generation}")
    return LATE if generation < worker.participation.generation else COUNTS


def _takes_part(books: ClusterState, worker: Worker) -> bool:
    """It trains in the job's newest generation, or in one that may be the newest."""
    in_doubt = books.job is not None and doubt.lasts(books, books.job)
    return worker.state in MEMBERS or (worker.reconnection.returning and in_doubt)


def _first(*verdicts: Verdict) -> Verdict:
    """The first that does not count; COUNTS if all do."""
    return next((one for one in verdicts if one.word is not Word.COUNTS), COUNTS)


# --- the rules ---------------------------------------------------------------------------------


def _heartbeat(books: ClusterState, worker: Worker, message: m.Heartbeat) -> Verdict:
    job = _active(books, message.job)
    if job is None or message.job not in worker.participation.jobs:
        return COUNTS  # it lives; its figures say nothing of the job
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    too_far = _too_far(job, message.step)
    return false(too_far) if too_far else COUNTS


def _warmed(books: ClusterState, worker: Worker, message: m.Warmed) -> Verdict:
    if any(one.where == "memory" for one in message.held):
        return false("who warms up holds nothing in memory yet")
    return _its_job(worker, message.job) if _active(books, message.job) else LATE


def _running(books: ClusterState, worker: Worker, message: m.Running) -> Verdict:
    verdict = _of_a_member(books, worker, message.job, message.generation)
    if verdict.word is not Word.COUNTS:
        return verdict
    if worker.state is not WorkerState.FORMING or message.generation != books.run.generation:
        return LATE
    if message.step != books.run.start_step:
        start = f"step {books.run.start_step}, not {message.step}"
        return false(f"generation {books.run.generation} starts from {start}")
    return COUNTS


def _of_a_member(books: ClusterState, worker: Worker, job_id: str, generation: int) -> Verdict:
    """What only a member may say that has warmed up."""
    if _active(books, job_id) is None:
        return LATE
    verdict = _first(_its_job(worker, job_id), _its_generation(worker, generation))
    if verdict.word is not Word.COUNTS:
        return verdict
    called_back = worker.state is WorkerState.WARMING and worker.reconnection.returning
    if not (worker.state in MEMBERS or called_back):
        return LATE  # given up, or it says again what is known
    if worker.holdings.warmed is None:
        return _out_of_turn("it has not said with which data and model it trains (WARMED)")
    return COUNTS


def _leaving(
    books: ClusterState, worker: Worker, message: m.Frozen | m.Finished, why_untrue: str
) -> Verdict:
    """FROZEN and FINISHED: by a member that still takes part, or by one that was called back."""
    verdict = _of_a_member(books, worker, message.job, message.generation)
    return _first(verdict, false(why_untrue) if why_untrue else COUNTS)


def _frozen(books: ClusterState, worker: Worker, message: m.Frozen) -> Verdict:
    return _leaving(books, worker, message, _untrue_of(_active(books, message.job), message))


def _untrue_of(job: Job | None, message: m.Frozen) -> str:
    """Why nobody can hold or have compared what it says; empty when somebody can."""
    too_far = _too_far(job, max(message.compared_step, message.diverged_step))
    if too_far:
        return too_far
    for one in message.held:
        impossible = _impossible(job, one.generation, one.step)
        if impossible:
            return impossible
        key = (one.generation, one.step)
        prepared = (message.prepared_generation, message.prepared_step)
        if one.generation > message.generation and one.where == "memory":
            return f"generation {message.generation} cannot have committed in {one.generation}"
        after = one.generation <= prepared[0] <= message.generation and prepared[1] == one.step + 1
        if prepared != key and not (after and one.where == "memory"):
            return f"nobody who holds {key} has prepared {prepared}"
        too_far = _too_far(job, one.step)
        if too_far and one.where == "memory":
            return too_far
    return ""


def _impossible(job: Job | None, generation: int, step: int) -> str:
    why = branches.why_impossible((generation, step), job) if job is not None else ""
    return f"no state has step {step} of generation {generation}: {why}" if why else ""


def _finished(books: ClusterState, worker: Worker, message: m.Finished) -> Verdict:
    job = _active(books, message.job)
    why = _too_far(job, message.step) or _impossible(job, message.held_generation, message.step)
    if message.held_generation > message.generation:
        why = f"generation {message.generation} cannot have committed in {message.held_generation}"
    return _leaving(books, worker, message, why)


def _figures(books: ClusterState, worker: Worker, job_id: str, step: int) -> Verdict:
    """What rank 0 alone tells of a step."""
    job = _active(books, job_id)
    if job is None:
        return LATE
    verdict = _its_job(worker, job_id)
    if verdict.word is not Word.COUNTS:
        return verdict
    if not worker.participation.generation or worker.participation.rank:
        return false("figures of a step come from rank 0 of a generation")
    too_far = _too_far(job, step)
    if too_far:
        return false(too_far)
    return COUNTS if _takes_part(books, worker) else LATE


def _progress(books: ClusterState, worker: Worker, message: m.Progress) -> Verdict:
    if (
        _active(books, message.job) is not None
        and message.generation < worker.participation.generation
    ):
        return LATE  # its rank may have been another then
    verdict = _figures(books, worker, message.job, message.step)
    return _first(verdict, _its_generation(worker, message.generation))


def _evaluated(books: ClusterState, worker: Worker, message: m.Evaluated) -> Verdict:
    return _figures(books, worker, message.job, message.step)


def _failed(books: ClusterState, worker: Worker, message: m.Failed) -> Verdict:
    job = _active(books, message.job)
    too_far = _too_far(job, message.step)
    if job is None:
        return LATE
    return _first(_its_job(worker, message.job), false(too_far) if too_far else COUNTS)


def _notice(books: ClusterState, worker: Worker, message: m.Notice) -> Verdict:
    return _its_job(worker, message.job) if _active(books, message.job) else LATE


def _output(books: ClusterState, worker: Worker, message: m.JobOutput) -> Verdict:
    """What a job printed last may come after its end."""
    del books
    verdict = _its_job(worker, message.job)
    if verdict.word is Word.COUNTS and message.rank not in worker.participation.ranks:
        return false(f"it never was rank {message.rank}")
    return verdict


def _saved(books: ClusterState, worker: Worker, message: m.CheckpointSaved) -> Verdict:
    """Written in the background: it may be told of generations later, or after the job's end."""
    verdict = _its_job(worker, message.job)
    if verdict.word is not Word.COUNTS:
        return verdict
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    too_far = _too_far(_active(books, message.job), message.step)
    return false(too_far) if too_far else COUNTS


def _agreed(books: ClusterState, worker: Worker, message: m.Agreed) -> Verdict:
    """By each member of the newest generation, also when it has left that."""
    job = _active(books, message.job)
    if job is None:
        return LATE
    verdict = _its_job(worker, message.job)
    if verdict.word is not Word.COUNTS:
        return verdict
    if message.generation > worker.participation.generation:
        return false(f"it was never a member of generation {message.generation}")
    too_far = _too_far(job, message.step)
    if too_far:
        return false(too_far)
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
"""Other messages are answers to what was asked: PROBED, MEASURED and CHECKPOINT_DROPPED count where
somebody waits for them, and REGISTER, LEAVE and GET_PACKAGE concern the sender alone."""
