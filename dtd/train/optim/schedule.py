"""The learning rates of a job: by its own schedule, or by one that the task builds.

The job's is a pure function of the number of updates, so it needs no state.  Warm-up is linear over
the first `warmup_steps` updates.  "step" drops by `gamma` every `step_every` updates, warm-up
included; "cosine" goes from the end of warm-up to the end of the job down to `min_lr`.  Skipped
steps are no updates.  A task's own schedule (`build_schedule`) is stepped once an update, and what
it keeps is a part of the state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dtd.errors import CheckpointError, TaskError
from dtd.job import ScheduleTable
from dtd.strategy.nested import decoded, encoded


def learning_rate(
    schedule: ScheduleTable, *, base_lr: float, update: int, updates_total: int
) -> float:
    """Learning rate of update number `update` (0-based)."""
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


SCHEDULE = "schedule."
"""Begins the names of its tensors in a state."""


class TaskSchedule:
    """One schedule of one optimizer."""

    def __init__(self, scheduler: LRScheduler) -> None:
        self._scheduler = scheduler

    def step(self) -> None:
        """Another update is made: set what counts for the next one.

        Raises:
            TaskError: the schedule is over, or failed otherwise.
        """
        try:
            self._scheduler.step()
        except Exception as error:
            raise TaskError(
                f"the schedule of the task's build_schedule() raised {type(error).__name__}:"
                f" {error}",
                remedy="let it last for total_steps updates; an extended job keeps the schedule"
                " that it was begun with",
            ) from error

    def state(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Return its state, fit for JSON, and its tensors in `tensors`; functions are no state."""
        return {
            name: encoded(
                _without_functions(value),
                SCHEDULE + name,
                tensors,
                keeps=f"the schedule of the task keeps {name}",
            )
            for name, value in sorted(self._scheduler.state_dict().items())
            if not callable(value)
        }

    def load(self, state: Any, tensors: Mapping[str, Tensor]) -> None:
        """Continue where another one was.

        Raises:
            CheckpointError: that was another kind of schedule.
        """
        own = self.state({})
        if not isinstance(state, dict) or state.keys() != own.keys():
            differing = sorted(own.keys() ^ state.keys()) if isinstance(state, dict) else ["it"]
            raise CheckpointError(
                f"the state is of another schedule than {type(self._scheduler).__name__}:"
                f" {differing[0]} is in only one of the two",
                remedy="use the task that made it, or start from its weights only",
            )
        try:
            self._scheduler.load_state_dict({k: decoded(v, tensors) for k, v in state.items()})
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise CheckpointError(f"the state of the task's schedule is broken: {error}") from error


def schedule_of(
    task: Any, optimizer: torch.optim.Optimizer, total_steps: int
) -> TaskSchedule | None:
    """The task's own schedule; None if it builds none.

    Raises:
        TaskError: its result is no schedule of this optimizer that can be stepped.
    """
    build = getattr(task, "build_schedule", None)
    if build is None:
        return None
    scheduler: Any = build(optimizer, total_steps)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TaskError(
            "build_schedule() of the task returned a ReduceLROnPlateau, which needs a metric, and"
            " schedules are stepped once an update",
            remedy="use a schedule of steps, such as CosineAnnealingLR or OneCycleLR",
        )
    if not isinstance(scheduler, LRScheduler):
        raise TaskError(
            f"build_schedule() of the task returned a {type(scheduler).__name__}",
            remedy="return one of torch.optim.lr_scheduler",
        )
    if scheduler.optimizer is not optimizer:
        raise TaskError(
            "build_schedule() of the task returned a schedule of another optimizer",
            remedy="build it for the optimizer that is passed in",
        )
    schedule = TaskSchedule(scheduler)
    schedule.state({})
    return schedule


def _without_functions(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({k: _without_functions(v) for k, v in value.items() if not callable(v)})
    if type(value) in (list, tuple):
        return type(value)(None if callable(item) else _without_functions(item) for item in value)
    return value
