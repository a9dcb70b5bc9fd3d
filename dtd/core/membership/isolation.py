"""The job's code failed on a worker: is the job at fault, or that one host?

A host without a driver, memory or the data set must not fail the job for all.  It is set aside and
tried again later, ever more seldom.  The job is at fault if the same fails on two workers (warming
up where nobody has done it yet, or one step), or on all that there are.  Whoever joins and has not
taken the state over yet is still warming up.  Part of the membership machine; changes the books,
adds effects.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from dtd.core.membership import admission, branches, ending, jobs, standstill
from dtd.core.membership import roster as choice
from dtd.core.membership.records import WARM_UP, Job, SetAside, Worker
from dtd.core.membership.state import ClusterState, least_workers
from dtd.core.membership.transitions import GONE, MEMBERS, GenerationState, WorkerState
from dtd.wire import messages as m

FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 600.0
MAX_REASON_CHARACTERS: Final = 4_000
MAX_TRACEBACK_CHARACTERS: Final = 12_000
"""Of what a worker says; the end of a traceback says most."""


def failed(books: ClusterState, job: Job, worker: Worker, message: m.Failed, now: float) -> None:
    """Set a worker aside, or fail the job."""
    if worker.state in GONE:
        return
    message = _bounded(message)
    at = message.step if _has_begun(job, worker) else WARM_UP
    aside = _note(books, worker, message, at, now)
    if at == WARM_UP and job.state in admission.ENDING_JOBS:
        _set_aside(books, worker, aside, now)  # it was no part of what ends
        return
    also = _also_on(books, worker, aside)
    if also:
        named = ", ".join(sorted(also, key=choice.natural_key))
        message = replace(message, reason=f"{message.reason} (on {named}, too)")
    ends = bool(also) or job.state in admission.ENDING_JOBS
    if ends or not _can_do_without(books, job, worker, aside, now):
        jobs.fail(books, worker.name, message, now)
    else:
        _set_aside(books, worker, aside, now)


def _bounded(message: m.Failed) -> m.Failed:
    reason = message.reason[:MAX_REASON_CHARACTERS]
    return replace(message, reason=reason, traceback=message.traceback[-MAX_TRACEBACK_CHARACTERS:])


def _has_begun(job: Job, worker: Worker) -> bool:
    """It has a step of the job to fail in: it has trained, or need not take a state over first.

    What a member holds is not known when this coordinator has just started.
    """
    if worker.state is WorkerState.FORMING and job.start_step and worker.holdings.held is not None:
        return choice.holds(worker, (job.start_generation, job.start_step))
    return worker.state in MEMBERS or worker.reconnection.returning or choice.in_memory(worker)


def _note(books: ClusterState, worker: Worker, message: m.Failed, at: int, now: float) -> SetAside:
    known = books.isolation.set_aside.get(worker.name)
    if known is not None and known.incarnation == worker.incarnation:
        return known  # it says so again, on another connection
    pause_s = FIRST_PAUSE_S if known is None else min(2 * known.pause_s, MAX_PAUSE_S)
    aside = books.isolation.set_aside[worker.name] = SetAside(
        at=at,
        failed=message,
        until=now + pause_s,
        pause_s=pause_s,
        incarnation=worker.incarnation,
        pid=worker.registration.pid,
        again=known.again + 1 if known is not None and known.at == at else 1,
    )
    return aside


def _also_on(books: ClusterState, worker: Worker, aside: SetAside) -> list[str]:
    """Workers on which the same has failed: one step, or the warm-up in the same words.

    Where somebody else has warmed up, it is not the job that is at fault in that.
    """
    alike = [
        name
        for name, one in books.isolation.set_aside.items()
        if one is not aside
        and one.at == aside.at
        and (one.at != WARM_UP or (one.until > 0 and _words(one) == _words(aside)))
    ]
    return [] if aside.at == WARM_UP and _somebody_can(books, worker) else alike


def _words(one: SetAside) -> str:
    return re.sub(r"\d+", "", one.failed.reason)


def _somebody_can(books: ClusterState, worker: Worker) -> bool:
    others = (one for one in books.workers.values() if one is not worker)
    return any(
        one.holdings.warmed is not None or one.state in MEMBERS or choice.in_memory(one)
        for one in others
    )


def _can_do_without(
    books: ClusterState, job: Job, worker: Worker, aside: SetAside, now: float
) -> bool:
    """Others are here, or may still come, and this worker's step can be done by them.

    The last that remembers committed steps is not let go: the job ends, and they are saved.
    """
    others = _others(books, worker.name)
    if not others:
        return _may_come(books, job, now)
    step = max(job.step, aside.failed.step)
    unsaved = aside.at != WARM_UP and step > branches.saved_step(job)
    if unsaved and not any(_is_heir(books, job, one) for one in others):
        return False
    return aside.at == WARM_UP or aside.again == 1 or len(others) >= least_workers(job)


def _is_heir(books: ClusterState, job: Job, worker: Worker) -> bool:
    """It remembers where the job stands.  Who is away trains on, if its generation has run."""
    if worker.state is WorkerState.AWAY:
        return books.run.has_run
    return not worker.reconnection.returning and standstill.remembers(books, job, worker)


def _others(books: ClusterState, name: str) -> list[Worker]:
    """Workers on which the job may still go on."""
    return [
        one
        for one in books.workers.values()
        if one.name != name
        and one.state not in GONE
        and not (one.state is WorkerState.REFUSED and one.holdings.warmed is None)
    ]


def _may_come(books: ClusterState, job: Job, now: float) -> bool:
    """At the beginning of a job other workers are given a moment to come, before it is judged."""
    settle_s = float(job.spec["elastic"]["settle_s"])
    if not books.waiting.must_settle or not settle_s:
        return False
    if books.isolation.verdict_by is None:
        books.isolation.verdict_by = now + settle_s
    return now < books.isolation.verdict_by


def _set_aside(books: ClusterState, worker: Worker, aside: SetAside, now: float) -> None:
    """Its process begins afresh, and is left alone for a while."""
    was_member = worker.state in MEMBERS
    books.incident(
        "worker_set_aside",
        f"{worker.name} is set aside for {aside.pause_s:g} s: {aside.failed.reason}",
        worker=worker.name,
        traceback=aside.failed.traceback,
    )
    if books.job is not None and (was_member or worker.reconnection.returning):
        books.fence(books.job)  # its training thread has ended
    admission.release(books, worker, "evicted", aside.reason)
    if was_member and books.run.phase is not GenerationState.NONE:
        why = f"{worker.name} has failed: {aside.failed.reason}"
        ending.end_now(books, why, now, worker=worker.name)


def try_again(books: ClusterState, job: Job, now: float) -> None:
    """Have those warm up again whose time has come; fail the job if nobody else has come.

    A job that is to end needs nobody more.
    """
    if job.state in admission.ENDING_JOBS:
        return
    for worker in _here(books):
        if now >= books.isolation.set_aside[worker.name].until:
            worker.reason = ""
            admission.prepare(books, worker, job)
    if books.isolation.verdict_by is not None and now >= books.isolation.verdict_by:
        _judge_all(books, now)


def _here(books: ClusterState) -> list[Worker]:
    return [worker for worker in books.workers.values() if admission.is_aside(books, worker)]


def _judge_all(books: ClusterState, now: float) -> None:
    """The job failed on the only worker, and no other has come."""
    books.isolation.verdict_by = None
    if books.waiting.must_settle and books.isolation.set_aside and not _others(books, ""):
        name, aside = list(books.isolation.set_aside.items())[-1]
        jobs.fail(books, name, aside.failed, now)


def next_deadline(books: ClusterState) -> float | None:
    """When somebody is tried again, or the job is judged."""
    times = [books.isolation.set_aside[worker.name].until for worker in _here(books)]
    if books.isolation.verdict_by is not None:
        times.append(books.isolation.verdict_by)
    return min(times, default=None)
