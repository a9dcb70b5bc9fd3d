"""When a training thread counts as stuck: by its marks, and by what moves between them."""

from __future__ import annotations

from typing import Any

import pytest

from dtd.cluster.workers.detector import LATE_TICKS
from dtd.cluster.workers.progress import (
    LOOK_AFTER_S,
    Evidence,
    ProgressWatch,
    Verdict,
    motion,
)

LEAST_S, FIRST_S, BUSY_S = 5.0, 120.0, 1800.0
INTERVAL_S = 0.25


class Thread:
    """A training thread, its clock, and the heartbeats of its process."""

    def __init__(self) -> None:
        self.watch = ProgressWatch(
            first_stall_limit_s=FIRST_S, least_stall_limit_s=LEAST_S, busy_limit_s=BUSY_S
        )
        self.now = 100.0
        self.cpu_s = 0.0
        self.watch.begin(self.now)

    def usual(self) -> Thread:
        """It has committed a step, and goes on with what it has done before."""
        for _ in range(3):
            self.watch.begins("batch", specialises=False)
            self.watch.committed()
        return self

    def beat(self, *, waits: bool = False, **seen: Any) -> Verdict:
        """As `dtd.worker.job.training` does it."""
        watch = self.watch
        stalled_s = watch.look(self.now, tick_s=INTERVAL_S, waits=waits)
        if stalled_s >= LOOK_AFTER_S:
            glance = Evidence(at_s=self.now, cpu_s=self.cpu_s)
            seen = {"children_cpu_s": 0.0, **seen}
            closely = Evidence(at_s=self.now, cpu_s=self.cpu_s, **seen)
            watch.saw(glance if watch.is_enough(glance) else closely)
        return watch.verdict(self.now, stalled_s)

    def passes(self, seconds: float, *, cpu: float = 0.0, **seen: Any) -> Verdict:
        """Time passes without a mark; `cpu`: of one processor."""
        verdict = self.beat(**seen)
        for _ in range(round(seconds / INTERVAL_S)):
            self.now += INTERVAL_S
            self.cpu_s += cpu * INTERVAL_S
            verdict = self.beat(**seen)
        return verdict

    def mark(self) -> None:
        self.watch.mark(self.now)


@pytest.fixture
def thread() -> Thread:
    return Thread().usual()


def is_stuck(verdict: Verdict) -> bool:
    return verdict.stalled_s > verdict.patience_s


# --- marks -------------------------------------------------------------------------------------


def test_a_thread_without_a_generation_is_not_stalled(thread: Thread) -> None:
    thread.watch.end()
    assert thread.passes(1000.0) == Verdict(patience_s=LEAST_S)


def test_waiting_for_the_ring_is_no_stall_and_no_silence(thread: Thread) -> None:
    for _ in range(400):
        thread.now += INTERVAL_S
        assert thread.beat(waits=True) == Verdict(patience_s=LEAST_S)
    thread.mark()
    assert thread.beat().patience_s == LEAST_S


# --- nothing moves -----------------------------------------------------------------------------


def test_a_thread_in_which_nothing_moves_is_stuck_after_five_seconds(thread: Thread) -> None:
    verdict = thread.passes(5.0)
    assert not is_stuck(verdict)
    assert (verdict.still_s, verdict.patience_s) == (5.0, 5.0)
    verdict = thread.passes(0.25)
    assert is_stuck(verdict)
    assert verdict.evidence == ("nothing has moved for 5.2 s; elastic.stall_timeout_s allows 5 s")


def test_a_thread_that_computes_and_then_hangs_is_found_as_soon(thread: Thread) -> None:
    thread.passes(60.0, cpu=1.0)
    assert not is_stuck(thread.passes(5.0))
    verdict = thread.passes(0.5)
    assert is_stuck(verdict)
    assert (verdict.stalled_s, verdict.still_s) == (65.5, 5.5)


def test_silence_that_turned_out_well_is_learned_from(thread: Thread) -> None:
    thread.passes(2.0)
    thread.mark()
    assert thread.beat().patience_s == pytest.approx(10 * (2.0 - LOOK_AFTER_S))
    thread.passes(0.75, cpu=1.0)
    thread.passes(3.0)
    thread.passes(1.0, cpu=1.0)
    thread.mark()
    assert thread.beat().patience_s == pytest.approx(10 * 3.0)


def test_what_is_learned_is_at_most_what_a_warm_up_may_take(thread: Thread) -> None:
    thread.passes(30.0)
    thread.mark()
    assert thread.beat().patience_s == FIRST_S
    thread.passes(100.0)
    thread.mark()
    assert thread.beat().patience_s == pytest.approx(2 * (100.0 - LOOK_AFTER_S))


# --- something moves ---------------------------------------------------------------------------


def test_a_thread_that_computes_is_not_stuck_but_for_a_long_time(thread: Thread) -> None:
    verdict = thread.passes(180.0, cpu=0.9)
    assert not is_stuck(verdict)
    assert verdict.still_s == 0.0
    assert verdict.evidence == (
        "it computes (90% of a processor); elastic.busy_timeout_s allows 1800 s"
    )
    assert not is_stuck(thread.passes(BUSY_S - 180.0, cpu=0.9))
    assert is_stuck(thread.passes(0.25, cpu=0.9))


def test_a_thread_that_waits_for_a_disk_is_not_stuck(thread: Thread) -> None:
    verdict = thread.passes(60.0, waits_for="a disk")
    assert not is_stuck(verdict)
    assert verdict.still_s == 0.0


def test_long_steps_that_compute_teach_no_patience(thread: Thread) -> None:
    """It would be ten times as long with what hangs."""
    for _ in range(3):
        thread.passes(100.0, cpu=1.0)
        thread.mark()
        thread.watch.committed()
    assert thread.beat().patience_s == LEAST_S


def test_what_was_seen_in_one_pause_says_nothing_of_the_next(thread: Thread) -> None:
    thread.passes(2.0, cpu=1.0)
    thread.mark()
    thread.cpu_s += 50.0  # between two pauses
    verdict = thread.passes(1.0)
    assert verdict.still_s == 1.0
    assert is_stuck(thread.passes(4.25))


def test_a_busy_limit_below_the_others_does_not_count() -> None:
    thread = Thread().usual()
    thread.watch.busy_limit_s = 1.0
    assert not is_stuck(thread.passes(5.0, cpu=1.0))
    assert is_stuck(thread.passes(0.25, cpu=1.0))


# --- the first time ----------------------------------------------------------------------------


def test_the_first_step_has_the_limit_of_a_warm_up() -> None:
    thread = Thread()
    verdict = thread.passes(120.0)
    assert not is_stuck(verdict)
    assert verdict.evidence.endswith("elastic.warmup_timeout_s allows 120 s")
    assert is_stuck(thread.passes(0.25))


def test_a_limit_above_that_of_the_warm_up_holds_for_the_first_step_too() -> None:
    thread = Thread()
    thread.watch.least_stall_limit_s = 300.0
    assert not is_stuck(thread.passes(300.0))


def limits(thread: Thread, *works: Any, specialises: bool) -> list[float]:
    """How long nothing may move as each of these begins, (kind, shape)."""
    found = []
    for kind, shape in works:
        thread.watch.begins(kind, shape, specialises=specialises)
        found.append(thread.beat().patience_s)
    return found


def test_whatever_is_done_for_the_first_time_has_the_limit_of_a_warm_up(thread: Thread) -> None:
    works = [("evaluation", None), ("evaluation batch", 8), ("batch", 8)]
    assert limits(thread, *works, specialises=False) == [FIRST_S, FIRST_S, LEAST_S]
    assert limits(thread, *works, specialises=False) == [LEAST_S] * 3


def test_where_code_is_made_for_shapes_another_one_is_new(thread: Thread) -> None:
    works = [("batch", 8), ("batch", 8), ("batch", 8), ("batch", 3), ("batch", 8), ("batch", 8)]
    first = [FIRST_S, FIRST_S, LEAST_S, FIRST_S, FIRST_S, LEAST_S]
    assert limits(thread, *works, specialises=True) == first
    assert limits(thread, *works, specialises=True) == [LEAST_S] * 6
    change = [("take over", None), ("batch", 8)]
    assert limits(thread, *change, specialises=True) == [FIRST_S] * 2
    assert limits(thread, *change, specialises=True) == [LEAST_S] * 2


def test_a_compiler_that_is_loaded_late_makes_every_shape_new(thread: Thread) -> None:
    assert limits(thread, ("batch", 8), specialises=False) == [LEAST_S]
    assert limits(thread, ("batch", 8), specialises=True) == [FIRST_S]


# --- a process that stands still -----------------------------------------------------------------


@pytest.mark.parametrize("thread_first", [True, False])
def test_a_process_that_was_stopped_was_not_silent(thread: Thread, thread_first: bool) -> None:
    thread.passes(1.0)
    thread.now += 3600.0
    if not thread_first:  # who goes on first after a pause of an hour is not ours to say
        thread.beat()
    thread.mark()
    most_s = 1.0 - LOOK_AFTER_S + LATE_TICKS * INTERVAL_S
    assert thread.beat().patience_s <= max(LEAST_S, 10 * most_s)


def test_a_stall_goes_on_after_the_process_was_stopped(thread: Thread) -> None:
    assert thread.passes(2.0).stalled_s == 2.0
    thread.now += 3600.0
    verdict = thread.beat()
    assert verdict.stalled_s == pytest.approx(2.0 + LATE_TICKS * INTERVAL_S)
    assert verdict.still_s == verdict.stalled_s


# --- what moves for a moment ---------------------------------------------------------------------


def test_a_flicker_of_activity_is_not_taken_for_progress(thread: Thread) -> None:
    """Another thread that wakes up for a moment hides no stall from the comparison with others."""
    thread.passes(4.0)
    thread.passes(0.25, cpu=1.0)
    verdict = thread.passes(1.0)
    assert verdict.stalled_s == 5.25
    assert verdict.still_s == 5.0
    assert not is_stuck(verdict)


def test_a_new_pause_counts_its_own_activity_only(thread: Thread) -> None:
    thread.passes(4.0, cpu=1.0)
    thread.mark()
    assert thread.beat().still_s == 0.0
    assert thread.passes(2.0).still_s == 2.0


# --- what moves ----------------------------------------------------------------------------------


def test_child_processes_move_where_they_compute_between_two_close_looks() -> None:
    then = Evidence(at_s=1.0, cpu_s=0.0, children_cpu_s=1.0)
    now = Evidence(at_s=2.0, cpu_s=0.0, children_cpu_s=3.0)
    assert motion(then, now) == "its child processes compute (200% of a processor)"
    assert motion(Evidence(at_s=1.0, cpu_s=0.0), now) == ""
    assert motion(None, now) == ""
