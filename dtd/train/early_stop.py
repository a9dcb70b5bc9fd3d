"""Early stopping: ends the job when a metric has not improved for some evaluations.

Every worker judges the same metrics, so all reach the same decision.  The history is part of the
state: the result of an evaluation is added at the commit of the step that follows it.  This file
does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dtd.errors import TaskError
from dtd.job import TrainTable
from dtd.shown import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Summary of the evaluations so far.

    Attributes:
        best: the best value of the metric; None before the first evaluation.
        waited: number of evaluations since the best one.
        goal: the mode and the metric, such as "min loss"; empty before the first evaluation.
    """

    best: float | None = None
    waited: int = 0
    goal: str = ""


NOTHING_SEEN: Final = EarlyStop()


def check_evaluated(table: TrainTable, *, has_evaluation: bool) -> None:
    """Check that there are evaluations for early stopping.

    Raises:
        TaskError: early stopping is configured, but the task has no evaluation.
    """
    if table.early_stop_metric and not has_evaluation:
        raise TaskError(
            "train.early_stop_metric is set, and the task has no eval_dataset()",
            remedy="give it one, or leave early_stop_metric out",
        )


def judge(table: TrainTable, seen: EarlyStop, metrics: Mapping[str, float]) -> EarlyStop:
    """Take one more evaluation into account.

    A job may continue from the state of one with another metric: then nothing is seen yet.

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
    goal = f"{table.early_stop_mode} {name}"
    if seen.goal != goal:
        seen = NOTHING_SEEN
    value, best = metrics[name], seen.best
    better = best is None or (value < best if table.early_stop_mode == "min" else value > best)
    if math.isfinite(value) and better:
        return EarlyStop(best=value, goal=goal)
    return EarlyStop(best=best, waited=seen.waited + 1, goal=goal)


def why_it_ends(table: TrainTable, seen: EarlyStop) -> str:
    """Return why the job ends now; empty if it continues."""
    if not table.early_stop_metric or seen.waited < table.early_stop_patience:
        return ""
    best = "was never finite" if seen.best is None else f"was {seen.best:g} at best"
    return (
        f"{table.early_stop_metric} {best} and has not improved for"
        f" {counted(seen.waited, 'evaluation')}"
    )
