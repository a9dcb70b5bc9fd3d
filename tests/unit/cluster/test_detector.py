"""Judgements by the clock: silent workers, pauses of this process, and the straggler."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.detector import (
    HOLD_S,
    LOOK_EVERY_S,
    Detector,
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


def test_gap_in_our_pause_detector_is_given_back() -> None:
    detector = watching("a")
    look_until(detector, 2.0)
    assert detector.suspects(100.0) == []
    assert detector.silence_s("a", 100.0) == 2.0 + 2 * 0.5


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
