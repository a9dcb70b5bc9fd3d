"""The choice of a job's checkpoint: of a step, the newest, or the best by a metric.  Pure.

On the coordinator's list of checkpoints, which has an entry for each worker that has one or a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtd.cluster.vouching import CONTRADICTED, VERIFIED
from dtd.engine.shards import united
from dtd.errors import RequestRefused
from dtd.job.learning import lower_is_better
from dtd.parts.cover import by_checkpoint, missing, part_of
from dtd.rules import did_you_mean

Checkpoint = Mapping[str, Any]


def confirmation_of(group: Sequence[Checkpoint]) -> str:
    """Return a checkpoint's confirmation: confirmed if parts with a confirmed digest hold all."""
    confirmed = united(part_of(one) for one in group if one["confirmation"] == VERIFIED)
    if confirmed.covers(united(map(part_of, group))):
        return VERIFIED
    return str(next(one["confirmation"] for one in group if one["confirmation"] != VERIFIED))


def holders_of(
    known: Sequence[Checkpoint], *, job: str, step: int, best_metric: str, mode: str = ""
) -> list[Checkpoint]:
    """The holders of the requested checkpoint, connected or not.

    A checkpoint that all ranks agreed on is preferred to unconfirmed ones.

    Args:
        known: the coordinator's list.
        job: for messages.
        step: this step's; 0 for any.
        best_metric: the best by this metric instead of the newest.
        mode: whether a greater ("max") or a smaller ("min") value is better; empty: as the job
            file's reference says of an empty `best_mode`.

    Raises:
        RequestRefused: there is none.
    """
    wanted = [one for one in known if one["confirmation"] != CONTRADICTED]
    wanted = [one for one in wanted if step in (0, one["step"])]
    groups = by_checkpoint(wanted)
    if not step:
        groups = [group for group in groups if not missing([*map(part_of, group)])]
    if best_metric and groups:
        groups = _with_metric(groups, best_metric, job)
    if not groups:
        what = f"of step {step} " if step else ""
        raise RequestRefused(
            f"job {job} has no checkpoint {what}that agrees with the digests of its ranks",
            remedy=f"list its checkpoints with: dtdctl checkpoints {job}",
        )
    confirmed = [group for group in groups if confirmation_of(group) == VERIFIED]
    return max(confirmed or groups, key=lambda group: _rating(group, best_metric, mode))


def _with_metric(
    groups: Sequence[list[Checkpoint]], metric: str, job: str
) -> list[list[Checkpoint]]:
    found = [group for group in groups if _values(group, metric)]
    if not found:
        known = sorted({name for group in groups for one in group for name in one["metrics"]})
        raise RequestRefused(
            f"job {job} has no checkpoint with the metric {metric!r}{did_you_mean(metric, known)}",
            remedy=f"its checkpoints have: {', '.join(known) or 'none'}",
        )
    return found


def _values(group: Sequence[Checkpoint], metric: str) -> list[float]:
    """A checkpoint's value of a metric, from all workers that have saved it."""
    return [one["metrics"][metric] for one in group if one["metrics"].get(metric) is not None]


def _rating(group: Sequence[Checkpoint], best_metric: str, mode: str) -> tuple[Any, ...]:
    age = (group[0]["generation"], group[0]["step"])
    if not best_metric:
        return age
    value = _values(group, best_metric)[0]
    return (-value if lower_is_better(best_metric, mode) else value, *age)
