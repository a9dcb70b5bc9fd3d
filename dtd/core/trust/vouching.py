"""Which checkpoints are what all ranks agreed on: a worker's word that it saved one proves little.

Every rank sees the digests of all ranks before a checkpoint is published, and tells the digest that
they agreed on (AGREED).  What more than half of the generation's roster tell is *confirmed*, and is
remembered with the job; the digest in somebody's CHECKPOINT_SAVED is compared with it.  A saved
state counts for decisions only once the job is known to have got that far: a claim from beyond
waits until others bear the step out.  Part of the membership machine; changes the books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dtd.core.membership import branches
from dtd.core.membership.events import SaveJob
from dtd.core.membership.records import Job
from dtd.core.membership.state import ClusterState
from dtd.wire import messages as m

VERIFIED: Final = "verified"
UNCONFIRMED: Final = "unconfirmed"
CONTRADICTED: Final = "contradicted"

MAX_CONFIRMED: Final = 128
"""Digests that a job remembers, the newest."""

MAX_OPEN: Final = 16
"""States whose digests one rank is remembered to have told, its newest."""

MAX_CLAIMS: Final = 8
"""Saved states of one worker that wait for others to bear the step out."""


class Confirmed(NamedTuple):
    """All ranks had this digest after (generation, step)."""

    generation: int
    step: int
    digest: str


def remembered(known: Iterable[Sequence[Any]]) -> tuple[Confirmed, ...]:
    """What a job's record holds, which may have been read from a file."""
    return tuple(Confirmed(int(one[0]), int(one[1]), str(one[2])) for one in known)


def verdict(confirmed: Iterable[Confirmed], key: branches.Key, digest: str) -> str:
    """Whether a checkpoint with this digest is what all ranks agreed on, as far as is known."""
    for one in confirmed:
        if (one.generation, one.step) == key:
            return VERIFIED if one.digest == digest else CONTRADICTED
    return UNCONFIRMED


def agreed(books: ClusterState, job: Job, name: str, message: m.Agreed) -> None:
    """A member tells on which digest all ranks agreed; enough of them confirm it."""
    key, known = (message.generation, message.step), remembered(job.agreed)
    if any((one.generation, one.step) == key for one in known):
        return
    # The last told of are the newest.
    said = books.trust.agreed[key] = books.trust.agreed.pop(key, {})
    said[name] = message.digest
    _forget_oldest(books, name)
    counted = Counter(digest for by, digest in said.items() if by in job.roster)
    digest, times = counted.most_common(1)[0]
    if 2 * times <= len(job.roster):
        return
    del books.trust.agreed[key]
    job.agreed = (*known, Confirmed(*key, digest))[-MAX_CONFIRMED:]
    if key == (job.checkpoint_generation, job.checkpoint_step):
        books.emit(SaveJob(job=job))  # else it goes along when that is reported


def _forget_oldest(books: ClusterState, name: str) -> None:
    """Each rank has room of its own, so none can make the others' words forgotten."""
    told = [key for key, said in books.trust.agreed.items() if name in said]
    for key in told[:-MAX_OPEN]:
        del books.trust.agreed[key][name]
        if not books.trust.agreed[key]:
            del books.trust.agreed[key]


def saved(books: ClusterState, job: Job, name: str, message: m.CheckpointSaved) -> None:
    """A worker says that it has published a checkpoint."""
    key = (message.generation, message.step)
    if verdict(remembered(job.agreed), key, message.digest) == CONTRADICTED:
        books.incident(
            "checkpoint_contradicted",
            f"{name} says that it saved step {message.step} with digest {message.digest}, and the"
            " ranks agreed on another one",
            worker=name,
            step=message.step,
        )
        if books.saving is not None:
            books.saving.failed(name, "what it has written is not what the ranks hold", books.now)
        return
    claims = books.trust.claims.setdefault(name, [])
    claims.append(key)
    del claims[:-MAX_CLAIMS]
    if books.saving is not None:
        books.saving.answered(name)
    count(books, job)


def count(books: ClusterState, job: Job) -> None:
    """Have those saved states count that the job is known to have got to."""
    for name, claims in books.trust.claims.items():
        for key in [one for one in claims if _is_borne_out(books, job, one)]:
            claims.remove(key)
            _counts(books, job, name, key)


def _is_borne_out(books: ClusterState, job: Job, key: branches.Key) -> bool:
    """It is a state of what is trained now, of a branch that was left, or the one asked for."""
    start = (job.start_generation, job.start_step)
    before = key <= start and key[1] <= start[1]
    since = key[0] == job.generation and job.start_step < key[1] <= job.step
    asked = books.saving is not None and key == books.saving.key
    return before or since or asked or branches.is_left(key, branches.remembered(job.branches))


def _counts(books: ClusterState, job: Job, name: str, newest: branches.Key) -> None:
    """Remember who holds the newest checkpoint; one on a branch that was left comes last."""
    known, holders = (job.checkpoint_generation, job.checkpoint_step), job.checkpoint_holders
    if newest == known and name not in holders:
        job.checkpoint_holders = tuple(sorted({*holders, name}))
    elif _rank(job, newest) > _rank(job, known):
        job.checkpoint_generation, job.checkpoint_step = newest
        job.checkpoint_holders = (name,)
    else:
        return  # nothing is learnt, and a job that is written down is waited for by generations
    books.emit(SaveJob(job=job))


def _rank(job: Job, key: branches.Key) -> tuple[bool, branches.Key]:
    return not branches.is_left(key, branches.remembered(job.branches)), key
