"""The states that a job has left behind: branches that it does not continue.

When a generation starts from an older state than a saved one, it begins a branch.  Of the states
that earlier generations have committed, those with a greater key than its start, or with more
steps, are on another branch: none of them is an ancestor of the current state, so later saves do
not supersede them, and retention keeps them.  Pure; states are named by their keys, (generation,
step), compared as pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dtd.cluster.records import Job
from dtd.wire import messages as m

MAX_BRANCHES: Final = m.MAX_BRANCHES
"""Beyond this number, branches are merged into fewer that cover the same states, possibly more."""

Key = tuple[int, int]


class Branch(NamedTuple):
    """States that are not ancestors of (generation, step), of generations before `before`.

    Those are all of later generations, and of its own and earlier ones what has more steps.
    """

    generation: int
    step: int
    before: int


def remembered(known: Iterable[Sequence[Any]]) -> tuple[Branch, ...]:
    """The branches of a job's record, which may come from a file."""
    return tuple(Branch(int(one[0]), int(one[1]), int(one[2])) for one in known)


def is_left(key: Key, branches: Iterable[Branch]) -> bool:
    """Whether the job continues without the state of this key."""
    generation, step = key
    return any(
        generation < one.before and (generation > one.generation or step > one.step)
        for one in branches
    )


def saved_step(job: Job) -> int:
    """Steps of the newest checkpoint that counts for what is trained now; 0 for none.

    A checkpoint on a branch that was left does not cover the same steps of this one.
    """
    saved = (job.checkpoint_generation, job.checkpoint_step)
    return 0 if is_left(saved, remembered(job.branches)) else job.checkpoint_step


def left(known: Sequence[Branch], start: Key, generation: int) -> tuple[Branch, ...]:
    """The branches left behind when `generation` begins with the state `start`.

    If that state is on a branch that was left, the job takes it up again: neither the state nor
    what its own generation committed before it is left behind any more.  Where that branch began is
    not known, but not before the first one did: what earlier generations committed since is left.
    """
    new = Branch(*start, before=generation)
    if is_left(start, known):
        known = [known[0]._replace(before=generation)]
    older = (one for one in known if (one.generation, one.step) < start)
    cut = (one._replace(before=min(one.before, start[0])) for one in older)
    kept = [*(one for one in cut if one.generation <= one.before), new]
    while len(kept) > MAX_BRANCHES:
        first, second = kept[:2]
        kept[:2] = [Branch(first.generation, first.step, second.before)]
    return tuple(kept)


def told_by(assign: m.Assign) -> tuple[Branch, ...]:
    """The branches that a member knows: those it was told, and the one its generation leaves."""
    known = [Branch(one.generation, one.step, one.before) for one in assign.branches]
    return (*known, Branch(assign.held_generation, assign.held_step, assign.generation))
