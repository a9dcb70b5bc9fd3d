"""The learning rates of the job's own schedules."""

from __future__ import annotations

import pytest

from dtd.job import ScheduleTable
from dtd.train.optim.schedule import learning_rate


def rates(total: int = 10, base_lr: float = 1.0, **table) -> list[float]:
    schedule = ScheduleTable(**table)
    return [
        learning_rate(schedule, base_lr=base_lr, update=update, updates_total=total)
        for update in range(total)
    ]


def test_cosine_runs_from_warm_up_to_the_end() -> None:
    curve = rates(total=12, name="cosine", warmup_steps=2, min_lr=0.2)
    assert curve[:3] == [0.5, 1.0, 1.0]
    assert curve[7] == pytest.approx(0.6)
    assert curve[2:] == sorted(curve[2:], reverse=True)
    assert curve[-1] > 0.2
    after = learning_rate(
        ScheduleTable(name="cosine", min_lr=0.2), base_lr=1.0, update=99, updates_total=12
    )
    assert after == pytest.approx(0.2)
