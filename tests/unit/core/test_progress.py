"""When a training thread counts as stuck."""

from __future__ import annotations

import pytest

from dtd.core.own_clock import LATE_TICKS
from dtd.core.progress import ProgressWatch

LEAST_PATIENCE_S = 5.0
INTERVAL_S = 1.0


@pytest.fixture
def watch() -> ProgressWatch:
    made = ProgressWatch(first_patience_s=120.0, least_patience_s=5.0)
    made.begin(100.0)
    return made


def beat(watch: ProgressWatch, now: float, *, waits: bool = False) -> float:
    return watch.look(now, tick_s=INTERVAL_S, waits=waits)


def test_a_thread_without_a_generation_is_not_stalled() -> None:
    watch = ProgressWatch(first_patience_s=120.0, least_patience_s=5.0)
    assert beat(watch, 1000.0) == 0.0
    watch.begin(1000.0)
    watch.committed()
    watch.end()
    assert beat(watch, 2000.0) == 0.0


def test_what_lies_between_two_generations_is_no_gap(watch: ProgressWatch) -> None:
    watch.committed()
    watch.end()
    watch.mark(700.0)  # takes over a state
    watch.begin(710.0)
    watch.mark(710.1)
    assert watch.patience_s() == LEAST_PATIENCE_S


def test_a_stall_counts_from_the_last_mark(watch: ProgressWatch) -> None:
    assert beat(watch, 103.0) == 3.0
    watch.mark(103.0)
    assert beat(watch, 104.5) == 1.5


def test_waiting_for_the_ring_is_no_stall_and_no_gap(watch: ProgressWatch) -> None:
    watch.committed()
    assert beat(watch, 150.0, waits=True) == 0.0
    watch.mark(150.1)
    assert watch.patience_s() == LEAST_PATIENCE_S


def test_before_the_first_step_the_warm_up_is_the_limit(watch: ProgressWatch) -> None:
    watch.mark(130.0)
    assert watch.patience_s() == 120.0


def test_patience_is_learned_from_the_longest_gap_after_the_first_step(
    watch: ProgressWatch,
) -> None:
    watch.mark(140.0)  # compiling: not how long things take from now on
    watch.committed()
    assert watch.patience_s() == LEAST_PATIENCE_S
    watch.mark(142.0)
    watch.committed()
    watch.mark(142.5)
    assert watch.patience_s() == pytest.approx(20.0)


@pytest.mark.parametrize("thread_first", [True, False])
def test_a_process_that_was_stopped_has_no_longer_gaps(
    watch: ProgressWatch, thread_first: bool
) -> None:
    watch.committed()
    beat(watch, 100.25)
    watch.mark(100.5)
    if not thread_first:  # who goes on first after a pause of an hour is not ours to say
        assert beat(watch, 3700.0) == pytest.approx(LATE_TICKS * INTERVAL_S - 0.25)
    watch.mark(3700.0)
    assert watch.patience_s() == pytest.approx(10 * (LATE_TICKS * INTERVAL_S - 0.25))
    beat(watch, 3701.0)
    watch.mark(3701.5)
    beat(watch, 3702.0)
    beat(watch, 3703.0)
    watch.mark(3703.5)  # heartbeats came all the time: it was the thread that took so long
    assert watch.patience_s() == pytest.approx(20.0)


def test_a_stall_goes_on_after_the_process_was_stopped(watch: ProgressWatch) -> None:
    watch.committed()
    for now, stalled_s in ((101.0, 1.0), (102.0, 2.0), (3702.0, 4.0), (3703.0, 5.0)):
        assert beat(watch, now) == pytest.approx(stalled_s)


def test_a_thread_that_got_on_in_a_late_heartbeat_is_not_ahead_of_time(
    watch: ProgressWatch,
) -> None:
    watch.committed()
    beat(watch, 101.0)
    watch.mark(109.5)
    assert beat(watch, 110.0) == 0.0
    assert beat(watch, 111.0) == pytest.approx(1.0)
