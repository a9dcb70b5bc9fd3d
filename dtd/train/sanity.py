"""Tries the evaluation before the job trains, since an error in it would fail the job at its end.

In the warm-up, a few batches are evaluated with the task's metrics.  The figures are discarded;
random generators, running buffers and the task's own state are restored.  The metrics named in the
job file must be among those returned.  The real evaluation is `dtd.train.evaluation`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dtd.errors import TaskError
from dtd.rules import did_you_mean
from dtd.train.data.rows import kept_random_state
from dtd.train.early_stop import NOTHING_SEEN, judge
from dtd.train.session import JobSession


def try_evaluation(session: JobSession) -> None:
    """Evaluate `train.sanity_batches` batches, and discard the figures.

    Raises:
        TaskError: metrics are malformed, or one that the job names is missing.  Other exceptions
            of the task pass through.
    """
    best, batches = session.spec.checkpoint.best_metric, session.spec.train.sanity_batches
    if session.evaluator is None:
        if best:
            raise TaskError(
                f"checkpoint.best_metric is {best!r}, and the task has no eval_dataset()",
                remedy="give it one, or leave best_metric out",
            )
        return
    if not batches:
        return
    session.buffers.take_snapshot()
    try:
        with kept_random_state(), session.replica.own.unchanged("the evaluation"):
            found = session.evaluator.evaluate_some(
                session.replica.model, batches=batches, progress=session.reporter.progress
            )
        session.watch.check_structure("the evaluation")
    except TaskError as error:
        raise TaskError(
            f"{error.message} (found by evaluating {batches} batches before training)",
            remedy=error.remedy,
        ) from error
    finally:
        session.buffers.restore()
    _check_best(best, found)
    judge(session.spec.train, NOTHING_SEEN, found)


def _check_best(best: str, found: Iterable[str]) -> None:
    if best and best not in found:
        raise TaskError(
            f"checkpoint.best_metric is {best!r}, and the evaluation has"
            f" {', '.join(sorted(found))}{did_you_mean(best, found)}",
            remedy="name one of these, or return it from metrics(model, batch)",
        )
