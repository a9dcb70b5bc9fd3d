"""Whether a pass can be made in the order of another one."""

from __future__ import annotations

import pytest

from dtd.errors import TaskError
from dtd.strategy.sharded.pass_plan import PassOrder, PassPlan, follow
from dtd.strategy.sharded.schedule import Recorder

UNITS = 3
FORWARD = [step for unit in range(UNITS) for step in (("need", unit), ("end", unit))]
BACKWARD = [step for unit in (2, 1, 0) for step in (("need", unit), ("grad", unit), ("grad", unit))]


def recorded(events):
    """A pass of units with one bucket each, of two parameters."""
    recorder, seen = Recorder(range(UNITS)), [0] * UNITS
    for kind, unit in events:
        if kind == "need":
            recorder.need(unit)
        elif kind == "end":
            recorder.end(unit)
        else:
            recorder.gradient(unit, seen[unit])
            seen[unit] += 1
    return recorder


def order_of(events) -> PassOrder:
    buckets_of = [[unit] for unit in range(UNITS)]
    schedule = recorded(events).schedule()
    return PassOrder(
        schedule=schedule,
        plan=PassPlan.of(schedule, buckets_of),
        unit_of=range(UNITS),
        buckets_of=buckets_of,
        names=["first", "second", "third"],
    )


def without(events, *left_out):
    kept = list(events)
    for one in left_out:
        kept.reverse()
        kept.remove(one)
        kept.reverse()
    return kept


@pytest.mark.parametrize(
    "other",
    [
        BACKWARD,
        without(BACKWARD, ("grad", 1)),  # a parameter without a gradient
        without(BACKWARD, ("grad", 0), ("grad", 0)),
    ],
)
def test_it_can(other) -> None:
    follow(order_of(FORWARD + BACKWARD), recorded(FORWARD + other).events)


def test_a_unit_that_is_used_before_another_one_is_named() -> None:
    other = [("need", 1), ("end", 1), ("need", 0), ("end", 0), *FORWARD[4:], *BACKWARD]
    with pytest.raises(TaskError, match="second where it used first"):
        follow(order_of(FORWARD + BACKWARD), recorded(other).events)


def test_a_unit_that_is_left_out_is_found() -> None:
    with pytest.raises(TaskError, match="third where it used second"):
        follow(order_of(FORWARD + BACKWARD), recorded(FORWARD[:2] + FORWARD[4:] + BACKWARD).events)


def test_a_unit_that_is_used_once_more_is_found() -> None:
    with pytest.raises(TaskError, match="first again"):
        follow(
            order_of(FORWARD + BACKWARD),
            recorded([*FORWARD, *BACKWARD, ("need", 0), ("end", 0)]).events,
        )


def test_a_gradient_after_its_bucket_has_left_is_found() -> None:
    late = [*FORWARD, *without(BACKWARD, ("grad", 2)), ("grad", 2)]
    with pytest.raises(TaskError, match=r"gradients in another order .* first of third"):
        follow(order_of(FORWARD + BACKWARD), recorded(late).events)
