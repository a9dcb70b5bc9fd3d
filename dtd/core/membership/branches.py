"""Which states a job has left behind: the branches that it does not go on with.

When a generation starts from an older state than somebody has saved, it begins a branch: whatever
was committed after that state by earlier generations is on another one.  Such states are not
ancestors of what is trained now, so nothing that is saved later makes up for them, and retention
lets them be.  Pure; states are named by their keys, (generation, step), compared as pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dtd.core.membership.records import Job
from dtd.wire import messages as m

MAX_BRANCHES: Final = m.MAX_BRANCHES
"""More are told as fewer that cover the same states, and perhaps some that were not left."""

Key = tuple[int, int]


class Branch(NamedTuple):
    """States after (generation, step) that generations before `before` have committed."""

    generation: int
    step: int
    before: int


def remembered(known: Iterable[Sequence[Any]]) -> tuple[Branch, ...]:
    """What a job's record holds, which may have been read from a file."""
    return tuple(Branch(int(one[0]), int(one[1]), int(one[2])) for one in known)


def is_left(key: Key, branches: Iterable[Branch]) -> bool:
    """Whether the job goes on without the state of this key."""
    return any(key > (one.generation, one.step) and key[0] < one.before for one in branches)


def why_impossible(key: Key, job: Job) -> str:
    """Why no generation of the job can have committed this state; empty if one can, or may.

    What was committed after the newest generation's start was committed by that one, or was left.
    """
    generation, step = key
    if not job.start_generation < generation <= job.generation:
        return ""
    if generation < job.generation and not is_left(key, remembered(job.branches)):
        return f"generation {job.generation} goes on from an older one, and nothing was left behind"
    if generation == job.generation and step <= job.start_step:
        return f"generation {generation} began with step {job.start_step}"
    return ""


def saved_step(job: Job) -> int:
    """Steps of the newest checkpoint that counts for what is trained now; 0 for none.

    One on a branch that was left says nothing about the same steps of this one.
    """
    saved = (job.checkpoint_generation, job.checkpoint_step)
    return 0 if is_left(saved, remembered(job.branches)) else job.checkpoint_step


def left(known: Sequence[Branch], start: Key, generation: int) -> tuple[Branch, ...]:
    """What is left behind when `generation` begins with the state `start`."""
    new = Branch(*start, before=generation)
    kept = [*(one for one in known if (one.generation, one.step) < start), new]
    while len(kept) > MAX_BRANCHES:
        first, second = kept[:2]
        kept[:2] = [Branch(first.generation, first.step, second.before)]
    return tuple(kept)


def told_by(assign: m.Assign) -> tuple[Branch, ...]:
    """What a member knows of: what it is told, and what its generation itself leaves behind."""
    known = [Branch(one.generation, one.step, one.before) for one in assign.branches]
    return (*known, Branch(assign.held_generation, assign.held_step, assign.generation))
