"""The learning rate as a pure function of the number of updates, so it needs no state.

Warm-up is linear over the first `warmup_steps` updates.  "step" drops by `gamma` every
`step_every` updates, warm-up included; "cosine" goes from the end of warm-up to the end of the job
down to `min_lr`.  Skipped steps are no updates.  No torch here.
"""

from __future__ import annotations

import math

from dtd.job import ScheduleTable


def learning_rate(
    schedule: ScheduleTable, *, base_lr: float, update: int, updates_total: int
) -> float:
    """Learning rate of update number `update` (0-based).

    Args:
        schedule: the job's [schedule].
        base_lr: the rate that warm-up leads to.
        update: updates made so far.
        updates_total: updates of the whole job, where "cosine" ends.
    """
    if update < schedule.warmup_steps:
        return base_lr * (update + 1) / schedule.warmup_steps
    low = min(schedule.min_lr, base_lr)
    if schedule.name == "step":
        return max(low, base_lr * schedule.gamma ** (update // schedule.step_every))
    if schedule.name == "cosine":
        span = max(1, updates_total - schedule.warmup_steps)
        progress = min(1.0, (update - schedule.warmup_steps) / span)
        return low + (base_lr - low) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return base_lr
