"""Early stopping: a metric that has not improved for some evaluations ends the job.

Every worker judges the same metrics and comes to the same end.  What has been seen so far is part
of the state; a judgement is entered with the step that follows its evaluation.  No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dtd.errors import TaskError
from dtd.job import TrainTable


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """What the evaluations so far have shown.

    Attributes:
        best: the best value of the metric; None before the first.
        waited: evaluations since then.
    """

    best: float | None = None
    waited: int = 0


NOTHING_SEEN: Final = EarlyStop()


def check_evaluated(table: TrainTable, *, has_evaluation: bool) -> None:
    """See that there will be something to judge.

    Raises:
        TaskError: early stopping is asked for, and the task has no evaluation.
    """
    if table.early_stop_metric and not has_evaluation:
        raise TaskError(
            "train.early_stop_metric is set, and the task has no eval_dataset()",
            remedy="give it one, or leave early_stop_metric out",
        )


def judge(table: TrainTable, seen: EarlyStop, metrics: Mapping[str, float]) -> EarlyStop:
    """Take one more evaluation into account.

    Raises:
        TaskError: the metric is not among those of the evaluation.
    """
    name = table.early_stop_metric
    if not name:
        return seen
    if name not in metrics:
        raise TaskError(
            f"train.early_stop_metric is {name!r}, and the evaluation has"
            f" {', '.join(sorted(metrics)) or 'no metric'}",
            remedy="name one of these, or return it from metrics(model, batch)",
        )
    value, best = metrics[name], seen.best
    better = best is None or (value < best if table.early_stop_mode == "min" else value > best)
    if math.isfinite(value) and better:
        return EarlyStop(best=value)
    return EarlyStop(best=best, waited=seen.waited + 1)


def why_it_ends(table: TrainTable, seen: EarlyStop) -> str:
    """Why the job ends now; empty if it goes on."""
    if not table.early_stop_metric or seen.waited < table.early_stop_patience:
        return ""
    best = "was never finite" if seen.best is None else f"was {seen.best:g} at best"
    return (
        f"{table.early_stop_metric} {best} and has not improved for {seen.waited} evaluation"
        f"{'s' if seen.waited > 1 else ''}"
    )
