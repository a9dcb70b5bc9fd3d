"""The work that is due before and after a step, beside the step itself.

It is a function of values that are equal on all ranks, so all ranks exchange the same words in the
same order. An evaluation, and the agreement on a digest, belong to the step after the state that
they concern. A state that is to be saved is agreed on before it is evaluated, since a task's
metrics may fail. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtd.engine.control_word import ControlWord, Ending, Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeStep:
    """The work that is due once the step after the live state is open, in this order.

    Attributes:
        agree: compare the live state's digest across all ranks.
        catch_up: save the agreed state if a due save was missed.
        announce_start: report that the generation has begun and all members hold the same state.
        divide: gather speeds, and decide how the rows of steps are divided from here on.
        evaluate: evaluate the live state.
        finish: no step follows: end the job here.
    """

    agree: bool
    catch_up: bool
    announce_start: bool
    divide: bool
    evaluate: bool
    finish: bool


def before_step(
    *, met: bool, last: bool, evaluates: bool, awaits_digest: bool, divides: bool | None
) -> BeforeStep:
    """Return the work that is due before a step.

    Args:
        met: the members of the generation have already agreed on their state.
        last: no step follows the live state.
        evaluates: the live state is due for evaluation.
        awaits_digest: the live state is to be saved, and its digest has not been compared yet.
        divides: it is time to reconsider the division of rows; None if it is never reconsidered.
    """
    return BeforeStep(
        agree=not met or last or (evaluates and awaits_digest),
        catch_up=not met or last,
        announce_start=not met,
        divide=divides is not None and (divides or not met) and not last,
        evaluate=evaluates,
        finish=last,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterStep:
    """The work that is due after a commit.

    Attributes:
        checkpoint: take the state's digest, and write the state if this rank is a writer.
        waits: an earlier checkpoint is finished first, however long it takes.
        digest: take the state's digest to compare it, without saving.
        ending: how the generation ends with this step; None if it continues.
        agree: compare digests once more before it ends.
    """

    checkpoint: bool
    waits: bool
    digest: bool
    ending: Ending | None
    agree: bool


def after_commit(
    word: ControlWord, flags: Flags, *, checkpoint_due: bool, digest_due: bool, last: bool
) -> AfterStep:
    """Return the actions that are due after a commit.

    Before a stop or a leave the state is saved and agreed on once more; a mere yield needs neither:
    the next generation begins with an agreement.  A generation does not end early after the job's
    last step, which has its own end.
    """
    ends = word.flags.stop or word.flags.leave
    checkpoint = checkpoint_due or last or word.flags.checkpoint or ends
    return AfterStep(
        checkpoint=checkpoint,
        waits=word.flags.checkpoint or ends,
        digest=digest_due and not checkpoint,
        ending=None if last else word.ending(flags),
        agree=ends,
    )


def checkpoint_writers(
    hosts: Sequence[str], copies: int, *, sharded: bool = False, servers: int = 0
) -> frozenset[int]:
    """The ranks that write.

    Args:
        hosts: the host of each rank, in rank order.
        copies: wanted number of copies; limited by the number of ranks.
        sharded: no rank has the whole state.
        servers: how many of the last ranks are parameter servers, which have all of it.
    """
    if sharded:
        return frozenset(range(len(hosts) - servers if servers else 0, len(hosts)))
    firsts = [rank for rank, host in enumerate(hosts) if host not in hosts[:rank]]
    others = [rank for rank in range(len(hosts)) if rank not in firsts]
    return frozenset((firsts + others)[:copies])
