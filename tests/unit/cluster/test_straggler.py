"""The straggler: by one look, and over time without flickering."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.detector import HOLD_S, LOOK_EVERY_S, StragglerWatch, cost_s, straggler
from dtd.wire import messages as m


def beat(own_s: float, step_s: float = 0.1, **more: Any) -> m.Heartbeat:
    return m.Heartbeat(state="running", own_s=own_s, step_s=step_s, **more)


def beats(*own_s: float, step_s: float = 0.1) -> dict[str, m.Heartbeat]:
    return {f"w-{rank}": beat(one, step_s) for rank, one in enumerate(own_s)}


def test_the_straggler_works_longer_than_the_median_of_the_others() -> None:
    assert straggler(beats(0.05, 0.04, 0.09, 0.06)) == "w-2"
    assert cost_s(beats(0.05, 0.04, 0.09, 0.06), "w-2") == pytest.approx(0.04)
    assert cost_s(beats(0.05, 0.09, 0.06), "w-1") == pytest.approx(0.035)
    assert cost_s(beats(0.09, 0.05), "w-0") == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("cost", "step_s", "named"),
    [
        (0.0049, 0.1, False),  # not 5 % of the step
        (0.0051, 0.1, True),
        (0.0009, 0.005, False),  # not a millisecond
        (0.0011, 0.005, True),
    ],
)
def test_what_is_noise_is_not_named(cost: float, step_s: float, named: bool) -> None:
    assert bool(straggler(beats(0.004, 0.004 + cost, step_s=step_s))) is named


def test_there_is_none_without_somebody_to_compare_with() -> None:
    assert not straggler({})
    assert not straggler(beats(0.09))
    assert not straggler({**beats(0.09), "new": beat(0.0, 0.0), "idle": beat(0.5, 0.0)})


def test_of_equals_the_first_is_named() -> None:
    assert straggler(beats(0.01, 0.09, 0.09, 0.01, 0.01)) == "w-1"


class Clock:
    """Looks at heartbeats at the pace of the product."""

    def __init__(self) -> None:
        self.watch, self.now = StragglerWatch(), 0.0

    def look(self, *own_s: float, for_s: float) -> set[str]:
        """The names shown meanwhile."""
        shown = set()
        until = self.now + for_s
        while self.now < until:
            assert self.watch.is_due(self.now)
            self.watch.look(beats(*own_s), self.now)
            assert not self.watch.is_due(self.now)
            shown.add(self.watch.name)
            self.now += LOOK_EVERY_S
        return shown


def test_somebody_is_named_after_a_while_and_stays_named_for_a_while() -> None:
    clock = Clock()
    assert clock.look(0.05, 0.08, for_s=HOLD_S) == {""}
    assert clock.look(0.05, 0.08, for_s=1.0) == {"w-1"}
    assert clock.watch.named(beats(0.05, 0.08)) == {"name": "w-1", "cost_s": pytest.approx(0.03)}
    assert clock.look(0.05, 0.05, for_s=HOLD_S) == {"w-1"}
    assert clock.look(0.05, 0.05, for_s=1.0) == {""}
    assert clock.watch.named(beats(0.05, 0.08)) is None


def test_a_cost_around_the_limit_does_not_flicker() -> None:
    clock = Clock()
    clock.look(0.05, 0.06, for_s=HOLD_S + 1)
    assert clock.watch.name == "w-1"
    for own_s in (0.0549, 0.0551, 0.0535, 0.056) * 10:
        assert clock.look(0.05, own_s, for_s=1.0) == {"w-1"}


def test_members_who_take_turns_are_no_stragglers() -> None:
    clock = Clock()
    for _ in range(20):
        assert clock.look(0.05, 0.08, for_s=1.0) == {""}
        assert clock.look(0.08, 0.05, for_s=1.0) == {""}


def test_another_one_takes_over() -> None:
    clock = Clock()
    clock.look(0.05, 0.08, 0.05, for_s=HOLD_S + 1)
    assert clock.look(0.05, 0.05, 0.08, for_s=HOLD_S) == {"w-1"}
    assert clock.look(0.05, 0.05, 0.08, for_s=1.0) == {"w-2"}


def test_a_worker_that_is_gone_or_alone_is_not_shown() -> None:
    watch = StragglerWatch(name="w-1")
    assert watch.named(beats(0.09)) is None
    assert watch.named({"w-1": beat(0.09)}) is None
    watch.look({"w-1": beat(0.09)}, 0.0)
    assert watch.named(beats(0.05, 0.04)) is None  # it costs nothing now
