"""What is due before and after a step, beside the step itself.

All of it is a function of what every rank knows alike, so all ranks exchange the same words in the
same order.  An evaluation and the agreement on a digest belong to the step that follows the state
they are about; what is to be saved is agreed on before it is evaluated, since a task's metrics may
fail.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtd.core.engine.control_word import ControlWord, Ending, Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeStep:
    """What is due once the step after the live state is open, in this order.

    Attributes:
        agree: compare the digest of the live state with all ranks'.
        catch_up: save the agreed state if it should have been saved and was not.
        greet: the generation has begun: all members hold the same state.
        evaluate: evaluate the live state.
        finish: no step follows: end the job here.
    """

    agree: bool
    catch_up: bool
    greet: bool
    evaluate: bool
    finish: bool


def before_step(*, met: bool, last: bool, evaluates: bool, awaits_digest: bool) -> BeforeStep:
    """What is due before a step.

    Args:
        met: the members of the generation have agreed on their state already.
        last: no step follows the live state.
        evaluates: the live state is to be evaluated.
        awaits_digest: the live state is to be saved, and its digest has not been compared yet.
    """
    return BeforeStep(
        agree=not met or last or (evaluates and awaits_digest),
        catch_up=not met or last,
        greet=not met,
        evaluate=evaluates,
        finish=last,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterStep:
    """What is due after a commit.

    Attributes:
        checkpoint: take the state's digest, and write it where this rank is a writer.
        waits: an earlier checkpoint is finished first, however long it takes.
        digest: take the state's digest to compare it, without saving.
        ending: how the generation ends with this step; None if it goes on.
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
    """What is due after a commit.

    Before a stop or a leave the state is saved and agreed on once more; a mere yield needs neither:
    the next generation begins with an agreement.  A generation does not end early after the job's
    last step, which has its own end.

    Args:
        word: of the committed step.
        flags: what this rank said in it.
        checkpoint_due: by the step's number.
        digest_due: by the step's number.
        last: no step follows.
    """
    ends = word.stop or word.leave
    checkpoint = checkpoint_due or last or word.checkpoint or ends
    return AfterStep(
        checkpoint=checkpoint,
        waits=word.checkpoint or ends,
        digest=digest_due and not checkpoint,
        ending=None if last else word.ending(flags),
        agree=ends,
    )
