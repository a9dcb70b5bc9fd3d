"""Judgements by the clock: silent workers, pauses of this process, and the straggler."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.workers.detector import (
    HOLD_S,
    LATE_TICKS,
    LOOK_EVERY_S,
    Detector,
    PauseDetector,
    StragglerWatch,
    cost_s,
    straggler,
)
from dtd.wire import messages as m


def watching(*names: str) -> Detector:
    detector = Detector(timeout_s=5.0, tick_s=0.5)
    for name in names:
        detector.watch(name, 0.0)
    return detector


def look_until(detector: Detector, now: float) -> list[tuple[str, str]]:
    """Look as often as a driver does, so that no gap is our own."""
    tick = 0
    while tick * 0.5 < now:
        detector.suspects(tick * 0.5)
        tick += 1
    return detector.suspects(now)


def test_silence_beyond_the_time_out_is_suspect_and_says_for_how_long() -> None:
    assert look_until(watching("a"), 5.5) == [("a", "no heartbeat for 5.5 s (limit 5 s)")]


def test_silence_of_just_the_time_out_is_not() -> None:
    assert look_until(watching("a"), 5.0) == []


def test_sign_of_life_begins_the_silence_anew() -> None:
    detector = watching("a", "b")
    look_until(detector, 4.0)
    detector.heard("a", 4.0)
    assert [name for name, _ in look_until(detector, 6.0)] == ["b"]
    assert detector.silence_s("a", 6.0) == 2.0


def test_limit_grows_with_the_pauses_that_a_worker_has_survived() -> None:
    detector = watching("a", "b")
    look_until(detector, 4.0)
    detector.heard("a", 4.0)
    assert "a" not in [name for name, _ in look_until(detector, 4.0 + 5.5)]
    assert ("a", "no heartbeat for 12.5 s (limit 12 s)") in look_until(detector, 4.0 + 12.5)


def test_limit_grows_for_all_where_half_of_the_workers_are_late() -> None:
    detector = watching("a", "b", "c")
    for name in ("a", "b"):
        detector.heard(name, 3.0)
    assert [name for name, _ in look_until(detector, 9.0)] == []
    assert [name for name, _ in look_until(detector, 9.5)] == ["c"]


def test_pauses_fade() -> None:
    detector = watching("a")
    detector.heard("a", 4.0)
    for beat in range(1, 2 * 120):
        detector.heard("a", 4.0 + 0.5 * beat)
    assert detector.pause_s("a") == pytest.approx(0.5)


def test_longer_patience_is_for_one_watch() -> None:
    detector = watching("a")
    detector.watch("a", 0.0, timeout_s=30.0)
    assert look_until(detector, 20.0) == []
    detector.watch("a", 20.0)
    assert [name for name, _ in look_until(detector, 26.0)] == ["a"]


def test_gap_in_our_pause_detector_is_given_back() -> None:
    detector = watching("a")
    look_until(detector, 2.0)
    assert detector.suspects(100.0) == []
    assert detector.silence_s("a", 100.0) == 2.0 + 2 * 0.5


def test_gap_does_not_reach_into_the_future() -> None:
    detector = watching("a")
    look_until(detector, 2.0)
    detector.heard("a", 50.0)
    detector.suspects(100.0)
    assert detector.silence_s("a", 100.0) == 0.0


# --- when a process has stood still itself -------------------------------------------------------


TICK_S = 0.5


def test_before_the_first_look_nothing_is_known() -> None:
    clock = PauseDetector()
    assert clock.look(1e9, tick_s=TICK_S) == 0.0
    assert clock.ran_until == 1e9 + LATE_TICKS * TICK_S


def test_a_look_that_is_a_little_late_is_no_gap() -> None:
    clock = PauseDetector()
    clock.look(10.0, tick_s=TICK_S)
    assert clock.look(10.0 + LATE_TICKS * TICK_S, tick_s=TICK_S) == 0.0


def test_what_is_later_than_that_is_time_in_which_it_stood_still() -> None:
    clock = PauseDetector()
    clock.look(10.0, tick_s=TICK_S)
    assert clock.look(14.0, tick_s=TICK_S) == pytest.approx(4.0 - LATE_TICKS * TICK_S)
    assert clock.look(14.5, tick_s=TICK_S) == 0.0


# --- the straggler: by one look, and over time without flickering --------------------------------


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


def test_another_one_takes_over() -> None:
    clock = Clock()
    clock.look(0.05, 0.08, 0.05, for_s=HOLD_S + 1)
    assert clock.look(0.05, 0.05, 0.08, for_s=HOLD_S) == {"w-1"}
    assert clock.look(0.05, 0.05, 0.08, for_s=1.0) == {"w-2"}
