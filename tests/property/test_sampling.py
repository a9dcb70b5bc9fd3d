"""Orders of rows that a task decides: the same for every number of workers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import TaskError
from dtd.job import from_mapping
from dtd.train.data.sampling import POOL_BATCHES, order_of
from dtd.train.plan import JobPlan

seeds = st.integers(0, 2**63 - 1)


class Task:
    """One of the three hooks."""

    def __init__(self, kind: str, length: int) -> None:
        values = [1 + (7 * row) % 13 for row in range(length)]
        if kind == "row_order":
            self.row_order = lambda epoch, seed: np.roll(np.arange(length) // 2, epoch + seed % 3)
        elif kind == "row_weights":
            self.row_weights = lambda: values
        elif kind == "row_lengths":
            self.row_lengths = lambda: np.array(values)


def plan_of(kind: str, length: int, batch_rows: int, seed: int) -> JobPlan:
    spec = from_mapping(
        {
            "job": {
                "name": "p",
                "task": "digits",
                "epochs": 3,
                "global_batch_size": batch_rows,
                "seed": seed,
            }
        },
        source="test",
    )
    order = order_of(Task(kind, length), length, batch_rows=batch_rows, seed=seed)
    return JobPlan(spec=spec, order=order)


@pytest.mark.parametrize("kind", ["", "row_weights", "row_lengths", "row_order"])
@given(
    seed=seeds,
    length=st.integers(1, 300),
    batch_rows=st.integers(1, 40),
    world_size=st.integers(2, 9),
    step=st.integers(0),
)
def test_every_world_has_the_same_global_batches(
    kind, seed, length, batch_rows, world_size, step
) -> None:
    plan, again = (plan_of(kind, length, batch_rows, seed) for _ in range(2))
    step %= plan.steps_total
    (alone,) = plan.share(step, rank=0, world_size=1).requests
    shares = [again.share(step, rank=rank, world_size=world_size) for rank in range(world_size)]
    together = [row for share in shares for request in share.requests for row in request.rows]
    assert tuple(together) == alone.rows
    assert len(together) == plan.global_rows(step)
    assert plan.checksum(step) == again.checksum(step)
    assert set(together) <= set(range(length))


def epoch_of(plan: JobPlan, epoch: int) -> list[tuple[int, ...]]:
    steps = range(epoch * plan.epoch_steps, (epoch + 1) * plan.epoch_steps)
    return [plan.share(step, rank=0, world_size=1).requests[0].rows for step in steps]


@given(seed=seeds, length=st.integers(1, 500), batch_rows=st.integers(1, 7))
def test_batches_by_length_use_every_row_once(seed, length, batch_rows) -> None:
    plan = plan_of("row_lengths", length, batch_rows, seed)
    first, second = epoch_of(plan, 0), epoch_of(plan, 1)
    for batches in (first, second):
        assert sorted(row for batch in batches for row in batch) == list(range(length))
    if length > 50:
        assert first != second


def test_batches_by_length_are_of_similar_length() -> None:
    length, batch_rows = 10_000, 20
    lengths = np.random.default_rng(0).integers(1, 1000, length)
    task = Task("", 0)
    task.row_lengths = lambda: lengths
    order = order_of(task, length, batch_rows=batch_rows, seed=3)
    batches = order.rows(3, 0, 0, length).astype(int).reshape(-1, batch_rows)
    spans = np.ptp(lengths[batches], axis=1)
    assert spans.mean() < 2 * 1000 / POOL_BATCHES
    assert abs(np.corrcoef(np.arange(len(batches)), lengths[batches].mean(1))[0, 1]) < 0.15
    within = lengths[batches] - lengths[batches].mean(1, keepdims=True)
    assert abs(within[:, 0].mean()) < abs(spans.mean()) / 4  # rank 0 has not all short rows


def test_weights_are_chances() -> None:
    task = Task("", 0)
    task.row_weights = lambda: [0.0, 1.0, 0.0, 3.0, 0.0]
    order = order_of(task, 5, batch_rows=5, seed=1)
    drawn = Counter(
        row for epoch in range(2000) for row in order.rows(1, epoch, 0, 5).astype(int).tolist()
    )
    assert drawn.keys() == {1, 3}
    assert drawn[3] / drawn[1] == pytest.approx(3, rel=0.1)


def test_orders_that_differ_have_different_digests() -> None:
    kinds = ["", "row_weights", "row_lengths", "row_order"]
    digests = {order_of(Task(kind, 9), 9, batch_rows=2, seed=0).digest for kind in kinds}
    longer = order_of(Task("row_weights", 10), 10, batch_rows=2, seed=0).digest
    assert len(digests | {longer}) == 5


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"row_weights": [1.0]}, "returned 1 numbers for 3 rows"),
        ({"row_weights": [1.0, -1.0, 0.0]}, "negative, not finite or all 0"),
        ({"row_weights": [1.0, float("nan"), 0.0]}, "negative, not finite or all 0"),
        ({"row_weights": [0, 0, 0]}, "negative, not finite or all 0"),
        ({"row_weights": "abc"}, r"row_weights\(\) of the task returned what is no list"),
        ({"row_lengths": [1.5, 2, 3]}, r"row_lengths\(\) of the task returned what is no list"),
        ({"row_lengths": [[1], [2], [3]]}, "no list of numbers"),
        ({"row_order": []}, r"row_order\(0, 5\) of the task returned .*no"),
        ({"row_order": [0, 3]}, "some that the dataset has not.*from 0 to 2"),
        ({"row_order": [0], "row_lengths": [1, 2, 3]}, "row_lengths and row_order"),
    ],
)
def test_what_is_no_order_is_refused(hooks, message) -> None:
    task = Task("", 0)
    for name, value in hooks.items():
        setattr(task, name, lambda *_, value=value: value)
    with pytest.raises(TaskError, match=message):
        order_of(task, 3, batch_rows=2, seed=5)


def test_epochs_of_different_lengths_are_refused() -> None:
    task = Task("", 0)
    task.row_order = lambda epoch, seed: [0] * (2 + epoch)
    order = order_of(task, 3, batch_rows=2, seed=5)
    assert order.rows(5, 0, 0, 2).tolist() == [0, 0]
    with pytest.raises(TaskError, match=r"row_order\(1, 5\) .* returned 3 rows; epoch 0 has 2"):
        order.rows(5, 1, 0, 2)
