"""When a process has stood still itself."""

from __future__ import annotations

import pytest

from dtd.cluster.detector import LATE_TICKS, PauseDetector

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
