from __future__ import annotations

import math

import pytest

from dtd.observe.series import MAX_COLUMNS, Kind, Placement, believable, placement, widened
from dtd.wire.step_rows import StepRow


def row(step, generation=1, **changed):
    times = dict.fromkeys(
        ("step_s", "data_s", "compute_s", "comm_s", "exposed_s", "optimizer_s"), 0.25
    )
    values = {
        "epoch": 0, "steps": 1, "rows": 64, "loss": 1.0, "learning_rate": 0.1,
        "gradient_norm": 2.0, "sent_bytes": 10, "skipped": 0,
    }  # fmt: skip
    return StepRow(**({"step": step, "generation": generation} | values | times | changed))


@pytest.mark.parametrize(
    ("kind", "position", "generation", "where"),
    [
        (Kind.STEPS, 11, 1, Placement.APPENDED),
        (Kind.STEPS, 10, 3, Placement.REPLACES),
        (Kind.STEPS, 10, 2, Placement.LEFT_OUT),
        (Kind.EVALUATIONS, 10, 0, Placement.REPLACES),
        (Kind.WORKER, 10, 9, Placement.LEFT_OUT),
    ],
)
def test_the_latest_generation_counts(kind, position, generation, where):
    found = placement(kind, position, generation, newest=10, newest_generation=2)
    assert found is where


def test_honest_rows_are_believed():
    rows = [row(4), row(5, loss=math.nan), row(5, 2), row(6, 2, step_s=0.0)]
    assert believable(rows, step=6, generation=2) == rows


@pytest.mark.parametrize(
    "lie",
    [
        row(7, 2), row(6, 3), row(2, 1), row(3, 1), row(4, skipped=2), row(4, steps=0),
        row(4, step_s=math.nan), row(4, comm_s=-1.0), row(4, data_s=math.inf),
        row(4, optimizer_s=1e10),
    ],
)  # fmt: skip
def test_rows_that_nobody_can_have_measured_are_left_out(lie):
    assert believable([row(3), lie, row(5)], step=6, generation=2) == [row(3), row(5)]


def test_a_track_has_so_many_columns():
    assert widened(("a",), ("b", "a")) == ("a", "b")
    many = tuple(f"eval/{number}" for number in range(MAX_COLUMNS + 5))
    assert len(widened(("a",), many)) == MAX_COLUMNS
    assert widened(many, ("b",)) == many
