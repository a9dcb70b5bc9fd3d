"""The order of exchanges in a pass that was watched, and whether another pass can follow it."""

from __future__ import annotations

import pytest

from dtd.errors import TaskError
from dtd.strategy.sharded.schedule import GATHER, REDUCE, PassOrder, PassPlan, Recorder, follow


def watched(*events: tuple[str, int], unit_of: tuple[int, ...] = (1, 0)):
    recorder = Recorder(unit_of)
    for kind, number in events:
        if kind == "need":
            recorder.need(number)
        elif kind == "end":
            recorder.end(number)
        else:
            recorder.gradient(number, 0)
    return recorder.schedule()


FORWARD = (("need", 0), ("end", 0), ("need", 1), ("end", 1))


def test_the_last_unit_of_forward_is_kept_for_backward() -> None:
    found = watched(*FORWARD, ("need", 1), ("gradient", 0), ("need", 0), ("gradient", 1))
    assert found.gathers == [0, 1, 0]
    assert found.keeps == [False, True]


def test_gathers_are_one_ahead_of_their_use() -> None:
    found = watched(*FORWARD, ("need", 1), ("gradient", 0), ("need", 0), ("gradient", 1))
    gathers = [(GATHER, 0), (GATHER, 1), (GATHER, 2)]
    assert found.exchanges == [*gathers, (REDUCE, 0), (REDUCE, 1)]
    assert found.tail == 1


# --- another pass --------------------------------------------------------------------------

UNITS = 3
ALL_FORWARD = [step for unit in range(UNITS) for step in (("need", unit), ("end", unit))]
ALL_BACKWARD = [
    step for unit in (2, 1, 0) for step in (("need", unit), ("grad", unit), ("grad", unit))
]


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
    names = ["first", "second", "third"]
    return PassOrder(PassPlan.of(recorded(events).schedule(), range(UNITS), names))


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
        ALL_BACKWARD,
        without(ALL_BACKWARD, ("grad", 1)),  # a parameter without a gradient
        without(ALL_BACKWARD, ("grad", 0), ("grad", 0)),
    ],
)
def test_it_can(other) -> None:
    follow(order_of(ALL_FORWARD + ALL_BACKWARD), recorded(ALL_FORWARD + other).events)


def test_a_unit_that_is_used_before_another_one_is_named() -> None:
    other = [("need", 1), ("end", 1), ("need", 0), ("end", 0), *ALL_FORWARD[4:], *ALL_BACKWARD]
    with pytest.raises(TaskError, match="second where it used first"):
        follow(order_of(ALL_FORWARD + ALL_BACKWARD), recorded(other).events)


def test_a_unit_that_is_left_out_is_found() -> None:
    with pytest.raises(TaskError, match="third where it used second"):
        follow(
            order_of(ALL_FORWARD + ALL_BACKWARD),
            recorded(ALL_FORWARD[:2] + ALL_FORWARD[4:] + ALL_BACKWARD).events,
        )


def test_a_unit_that_is_used_once_more_is_found() -> None:
    with pytest.raises(TaskError, match="first again"):
        follow(
            order_of(ALL_FORWARD + ALL_BACKWARD),
            recorded([*ALL_FORWARD, *ALL_BACKWARD, ("need", 0), ("end", 0)]).events,
        )


def test_a_gradient_after_its_bucket_has_left_is_found() -> None:
    late = [*ALL_FORWARD, *without(ALL_BACKWARD, ("grad", 2)), ("grad", 2)]
    with pytest.raises(TaskError, match=r"gradients in another order .* first of third"):
        follow(order_of(ALL_FORWARD + ALL_BACKWARD), recorded(late).events)
