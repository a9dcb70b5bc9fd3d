"""Learning rates as functions of the update."""

from __future__ import annotations

import pytest

from dtd.job import ScheduleTable
from dtd.train.optimizer import learning_rate


def rates(total: int = 10, base_lr: float = 1.0, **table) -> list[float]:
    schedule = ScheduleTable(**table)
    return [
        learning_rate(schedule, base_lr=base_lr, update=update, updates_total=total)
        for update in range(total)
    ]


def test_warm_up_is_linear_and_reaches_the_base() -> None:
    assert rates(total=6, warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_step_drops() -> None:
    assert rates(total=7, name="step", step_every=3, gamma=0.5) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


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


def test_the_least_rate_never_raises_a_small_base() -> None:
    assert max(rates(base_lr=0.01, name="cosine", min_lr=0.2)) == 0.01
