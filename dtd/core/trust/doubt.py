"""Does the store name the newest generation there was?  Not after it has gone back.

A store that was restored from a backup is of a later *epoch* than its jobs: generations may have
come and gone since, and one of them may run on out of our hearing.  So the job is *in doubt*.
Nothing is formed until it is certain what the newest generation was:

* the highest one that any worker reports counts, with its roster and its start;
* when all of its members have come and none of them had left it, there was no later one: that
  would have needed one that has left (ADR 0006, rule 5);
* otherwise the operator decides (`dtdctl resume`).

Until then whoever trains trains on.  Numbers of another epoch are far from those of the last, so
none is given twice.  A worker that knows of a generation which the store has never heard of shows
that the store has gone back without being restored: that begins an epoch, too.  Part of the
membership machine; changes the books, adds effects.
"""

from __future__ import annotations

from typing import Final

from dtd.core.membership.events import SaveJob
from dtd.core.membership.records import Job
from dtd.core.membership.state import ClusterState
from dtd.core.membership.transitions import GenerationState
from dtd.wire import messages as m
from dtd.wire.fields import generations_in

NUMBERS_PER_EPOCH: Final = 1_000_000
"""Generations of epoch E have numbers above (E - 1) times this."""

MOST_NUMBER: Final = 2**63 - 1
PARTAKING: Final = frozenset({"forming", "running"})


def lasts(books: ClusterState, job: Job) -> bool:
    """Whether a generation may exist that is newer than the job's newest."""
    return job.store_epoch < books.epoch


def lowest_number(books: ClusterState) -> int:
    """What the numbers of this epoch exceed."""
    return max(0, books.epoch - 1) * NUMBERS_PER_EPOCH


def next_number(books: ClusterState, start: int) -> int:
    """The number of the next generation, which begins with a state of the generation `start`."""
    return max(_highest_known(books), start) + 1


def _highest_known(books: ClusterState) -> int:
    return max(books.run.generation, books.run.highest_seen, lowest_number(books))


def is_exhausted(books: ClusterState) -> bool:
    """No number is left: a store that names one near the top was not written by dtd alone."""
    return _highest_known(books) >= MOST_NUMBER


def why_exhausted(books: ClusterState) -> str:
    """What is to be done then, in words for a person."""
    return (
        f"waiting for good: generation {_highest_known(books)} is the last that has a number, so"
        " this coordinator's store is damaged; restore a backup of it (`dtd-coordinator restore`),"
        " or begin with an empty --state-dir and submit the job with the weights of a checkpoint"
        " (`dtdctl fetch`)"
    )


def implausible(books: ClusterState, name: str, message: m.Message) -> int:
    """The first number in a message that no generation of this store can have; 0: none.

    Whoever took part in a job that is not ours has its numbers from another store.  Only REGISTER
    may name numbers of this epoch that are not known here, for a store may have gone back; who does
    that has proved that it was given them (`must_be_proved`).
    """
    if _speaks_of_others(books, name, message):
        return 0
    highest = _highest_known(books)
    if isinstance(message, m.Register):
        highest = max(highest, books.epoch * NUMBERS_PER_EPOCH)
    return next((number for number in generations_in(message) if number > highest), 0)


def why_implausible(number: int) -> str:
    """What somebody hears who names such a number, and the operator who reads of it."""
    return (
        f"this coordinator's store has given no generation the number {number}; if the store is"
        " older than that, back it up and restore the backup, which begins a new epoch"
    )


def must_be_proved(books: ClusterState, message: m.Register) -> bool:
    """The worker speaks of a generation of our job, and not of the one that is known here.

    Of that one it knows the roster's id, which nobody else was told.
    """
    job = books.job
    if job is None or not is_ours(job, message) or not message.generation:
        return False
    known = (message.generation, message.roster_id) == (job.generation, job.roster_id)
    return not (known and message.name in job.roster)


def is_ours(job: Job | None, message: m.Register) -> bool:
    """Whether a worker has come with the active job, and not with a namesake of it."""
    return job is not None and (job.id, job.identity) == (message.job, message.identity)


def _speaks_of_others(books: ClusterState, name: str, message: m.Message) -> bool:
    if isinstance(message, m.Register):
        return not is_ours(books.job, message)
    known = books.workers.get(name)
    return known is None or known.stray


def learn(books: ClusterState, job: Job, message: m.Register) -> None:
    """A worker says in which generation it took part last: the highest counts."""
    seen = max(books.run.highest_seen, message.generation)  # proved, or known anyway
    books.run.highest_seen = seen
    members = tuple(member.name for member in message.roster)
    if books.run.phase is not GenerationState.NONE:
        return
    if message.generation > max(job.generation, books.run.generation) and not lasts(books, job):
        _went_back(books, message)
    if lasts(books, job) and message.generation > job.generation:
        books.withdraw(job)
        job.generation, job.roster_id = message.generation, message.roster_id
        job.roster = tuple(dict.fromkeys((*members, message.name)))
        job.instances = ()
        job.start_generation, job.start_step = message.held_generation, message.held_step
        job.announced, job.fenced = True, False
        books.trust.vouched.clear()
    same = (message.generation, message.roster_id) == (job.generation, job.roster_id)
    if same and message.phase in PARTAKING:
        books.trust.vouched.add(message.name)


def _went_back(books: ClusterState, message: m.Register) -> None:
    books.epoch += 1
    books.incident(
        "store_went_back",
        f"{message.name} knows generation {message.generation}, and the coordinator's store"
        f" {books.run.generation} at most: the store is older than what it decided",
        worker=message.name,
    )


def is_over(books: ClusterState, job: Job) -> bool:
    """Whether all members of the newest known generation are here, and none had left it."""
    return bool(job.roster) and books.trust.vouched.issuperset(job.roster)


def end(books: ClusterState, job: Job) -> None:
    """From here on the store knows the newest generation."""
    job.store_epoch = books.epoch
    books.trust.vouched.clear()
    books.emit(SaveJob(job=job))


def explain(books: ClusterState, job: Job) -> str:
    """What is waited for, in words for a person."""
    why = (
        f"the coordinator's store has gone back (epoch {books.epoch}) and may not know what was"
        " decided last"
    )
    way_out = f"`dtdctl resume {job.id}` if nobody else trains it"
    if not job.generation:
        return f"waiting: {why}; {way_out}"
    missing = [name for name in job.roster if name not in books.trust.vouched]
    return (
        f"waiting for {', '.join(missing)} to say that generation {job.generation}, the newest"
        f" known, still runs: {why}; {way_out}"
    )
