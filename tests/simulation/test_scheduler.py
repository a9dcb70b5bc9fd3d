import pytest

from tests.sim.scheduler import Scheduler


def forever(scheduler: Scheduler, *, until_s: float = 100.0) -> None:
    scheduler.run(until_s=until_s, done=lambda: False)


def test_time_jumps_to_what_is_next_and_ties_keep_their_order() -> None:
    scheduler, seen = Scheduler(), []
    for delay_s, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        scheduler.after(delay_s, lambda name=name: seen.append((scheduler.now, name)))
    forever(scheduler)
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    assert scheduler.handled == 3


def test_the_past_is_now() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.at(5.0, lambda: scheduler.at(1.0, lambda: seen.append(scheduler.now)))
    forever(scheduler)
    assert seen == [5.0]


def test_cancelled_timer_does_not_happen() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.after(1.0, lambda: seen.append(1)).cancel()
    forever(scheduler)
    assert seen == []
    assert scheduler.handled == 0


def test_it_stops_at_the_given_moment_and_goes_on_later() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.after(3.0, lambda: seen.append(1))
    forever(scheduler, until_s=2.0)
    assert seen == []
    forever(scheduler, until_s=3.0)
    assert seen == [1]


def test_it_stops_when_it_is_done() -> None:
    scheduler, seen = Scheduler(), []
    for _ in range(5):
        scheduler.after(1.0, lambda: seen.append(1))
    scheduler.run(until_s=9.0, done=lambda: len(seen) == 2)
    assert seen == [1, 1]


def test_time_that_stands_still_is_noticed() -> None:
    scheduler = Scheduler()

    def again() -> None:
        scheduler.after(0.0, again)

    scheduler.after(1.0, again)
    with pytest.raises(AssertionError, match=r"stands still at 1\.000"):
        forever(scheduler)
