"""Observers: what they are told and where, and that none of them holds up or fails training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dtd.errors import TaskError
from dtd.train import observers as module
from dtd.train.observers import Observers, observers_of
from dtd.train.record import Moment, nobody

WAIT_S = 10.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Warnings:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __call__(self, event: str, message: str) -> None:
        self.said.append((event, message))

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.said]


class Heard:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.others: list[tuple[str, int]] = []

    def on_step(self, at: Moment) -> None:
        self.steps.append(at.step)

    def on_evaluation(self, at: Moment) -> None:
        self.others.append(("evaluation", at.step))

    def on_finish(self, at: Moment) -> None:
        self.others.append(("finish", at.step))


class Blocked(Heard):
    """Does not return from a call until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()

    def on_step(self, at: Moment) -> None:
        self.entered.set()
        self.go.wait(WAIT_S)
        super().on_step(at)


def at(step: int, rank: int = 0) -> Moment:
    return Moment(rank=rank, world_size=2, step=step, epoch=0, metrics={"loss": 0.5})


@pytest.fixture
def warnings() -> Warnings:
    return Warnings()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_every_moment_is_told_in_order(warnings) -> None:
    heard = Heard()
    observers = Observers([heard], warnings)
    for step in range(1, 50):
        observers.tell("on_step", at(step))
    observers.tell("on_evaluation", at(49))
    observers.tell("on_checkpoint", at(49))  # it has no such hook
    observers.tell("on_finish", at(49))
    observers.finish(nobody, within_s=WAIT_S)
    assert heard.steps == list(range(1, 50))
    assert heard.others == [("evaluation", 49), ("finish", 49)]
    assert warnings.said == []


def test_rank_0_is_told_or_every_rank(warnings) -> None:
    first, every = Heard(), Heard()
    every.every_rank = True  # type: ignore[attr-defined]
    observers = Observers([first, every], warnings)
    assert observers.wants("on_step", rank=1)
    assert not observers.wants("on_start", rank=0)
    observers.tell("on_step", at(1, rank=0))
    observers.tell("on_step", at(2, rank=1))
    observers.finish(nobody, within_s=WAIT_S)
    assert (first.steps, every.steps) == ([1], [1, 2])


def test_a_task_that_goes_on_after_its_end_is_told_again(warnings) -> None:
    heard = Heard()
    observers = Observers([heard], warnings)
    for step in (1, 2):
        observers.tell("on_finish", at(step))
        observers.finish(nobody, within_s=WAIT_S)
    assert heard.others == [("finish", 1), ("finish", 2)]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_an_observer_raises_is_reported_and_it_is_told_further(
    warnings, clock, capsys, error
) -> None:
    class Raising(Heard):
        def on_step(self, at: Moment) -> None:
            super().on_step(at)
            raise error

    heard = Raising()
    observers = Observers([heard], warnings, clock)
    for step in range(5):
        observers.tell("on_step", at(step))
    observers.tell("on_finish", at(5))
    observers.finish(nobody, within_s=WAIT_S)
    assert (heard.steps, heard.others) == ([0, 1, 2, 3, 4], [("finish", 5)])
    assert warnings.events == ["observer_failed"]
    assert f"on_step() of observer Raising raised {type(error).__name__}" in warnings.said[0][1]
    assert capsys.readouterr().err.count("Traceback") == 1


def test_an_observer_that_is_too_slow_loses_moments_and_that_is_counted(
    warnings, clock, monkeypatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_STEPS", 10)
    monkeypatch.setattr(module, "MAX_WAITING", 12)
    slow = Blocked()
    observers = Observers([slow], warnings, clock)
    observers.tell("on_step", at(0))
    assert slow.entered.wait(WAIT_S)
    for step in range(1, 31):
        observers.tell("on_step", at(step))
    for step in (31, 32, 33):
        observers.tell("on_evaluation", at(step))  # two places are kept for what is rare
    assert warnings.events == ["observer_dropped"]
    clock.now += 61
    observers.tell("on_step", at(34))
    assert "20 more like it" not in warnings.said[0][1]
    assert "22 were dropped so far; 20 more like it" in warnings.said[-1][1]
    slow.go.set()
    observers.finish(nobody, within_s=WAIT_S)
    assert slow.steps == list(range(11))
    assert slow.others == [("evaluation", 31), ("evaluation", 32)]


def test_an_observer_that_hangs_is_reported_once_and_delays_the_end_by_little(
    warnings, clock
) -> None:
    hanging, other = Blocked(), Heard()
    observers = Observers([hanging, other], warnings, clock)
    observers.tell("on_step", at(1))
    assert hanging.entered.wait(WAIT_S)
    clock.now += module.HANGS_AFTER_S
    observers.tell("on_step", at(2))
    observers.tell("on_step", at(3))
    assert warnings.events == ["observer_hangs"]
    assert "on_step() of observer Blocked has not returned for 30 s" in warnings.said[0][1]
    marks: list[int] = []
    observers.finish(lambda: marks.append(1), within_s=0.05)
    assert warnings.events == ["observer_hangs", "observer_left_behind"]
    assert "on_step() has not returned" in warnings.said[1][1]
    assert marks  # the watch over the training thread is told that it gets on
    observers.finish(nobody, within_s=0.05)
    assert other.steps == [1, 2, 3]
    hanging.go.set()
    observers.close()


def test_nothing_runs_before_the_first_moment() -> None:
    before = threading.active_count()
    observers = Observers([Heard()])
    assert threading.active_count() == before
    observers.close()
    observers.finish(nobody)
    assert threading.active_count() == before


# --- what a task may return ------------------------------------------------------------------


class Misspelt:
    def on_stpe(self, at: Moment) -> None:
        """Never called."""


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (7, r"observers\(\) of the task returned a int.*on_finish"),
        ("on_step", "returned a str"),
        ([Misspelt()], 'observer Misspelt has on_stpe, .*did you mean "on_step"'),
        ([object()], "observer object has nothing that could be called"),
        ([Heard()] * 17, "17 observers, at most 16"),
    ],
)
def test_a_wrong_observer_is_named_before_training(returned: Any, message: str) -> None:
    class Task:
        def observers(self) -> Any:
            return returned

    with pytest.raises(TaskError, match=message):
        observers_of(Task())


@pytest.mark.parametrize("made", [lambda: [Heard()], lambda: iter((Heard(),))])
def test_observers_may_be_any_iterable(made: Callable[[], Any]) -> None:
    class Task:
        def observers(self) -> Any:
            return made()

    (one,) = observers_of(Task())
    assert isinstance(one, Heard)
    assert observers_of(object()) == []
