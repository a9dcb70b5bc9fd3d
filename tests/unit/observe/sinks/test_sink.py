"""Delivery to a sink: order, bounds, retries, and that no remark repeats what an error says."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dtd.observe.sinks import process as module
from dtd.observe.sinks.entries import Began, Ended, Figures
from dtd.observe.sinks.process import Delivery

WAIT_S = 10.0


class Scripted:
    """A library that fails as it is told to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.errors: list[Exception] = []
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()

    def _do(self, what: Any) -> None:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.errors:
            raise self.errors.pop(0)
        self.seen.append(what)

    def begin(self, entry: Began) -> None:
        self._do(("begin", entry.job))

    def figures(self, job: str, entries: Sequence[Figures]) -> None:
        self._do((job, [one.step for one in entries]))

    def end(self, entry: Ended) -> None:
        self._do(("end", entry.job, entry.state))

    def may_pass(self, error: Exception) -> bool:
        return isinstance(error, OSError)

    def close(self) -> None:
        self.seen.append("closed")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_EVERY_S", 0.0)
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.0)


def began(job: str = "j-1") -> Began:
    return Began(job=job, identity="abc", unix_s=1.0)


def ended(job: str = "j-1") -> Ended:
    return Ended(job=job, identity="abc", unix_s=9.0, state="done", result={"steps": 3.0})


def point(step: int, job: str = "j-1") -> Figures:
    return Figures(job=job, step=step, unix_s=2.0, scalars={"train/loss": 0.5})


def test_jobs_beside_each_other_share_the_requests() -> None:
    """Their figures alternate; what waits of a job still goes at once, and in its order."""
    sink = Scripted()
    sink.go.clear()
    delivery = Delivery(sink, lambda remark: None)
    delivery.put(began())
    assert sink.entered.wait(WAIT_S)
    delivery.put(began("j-2"))
    for step in range(1, 4):
        delivery.put(point(step))
        delivery.put(point(step, "j-2"))
    for entry in (ended(), began(), point(9), point(4, "j-2")):
        delivery.put(entry)
    sink.go.set()
    delivery.close(WAIT_S)
    assert sink.seen == [
        ("begin", "j-1"),
        ("begin", "j-2"),
        ("j-1", [1, 2, 3]),
        ("j-2", [1, 2, 3, 4]),
        ("end", "j-1", "done"),
        ("begin", "j-1"),
        ("j-1", [9]),
        "closed",
    ]
    assert delivery.dropped == 0


def test_what_an_unreachable_server_misses_is_said_once_and_comes_later() -> None:
    sink = Scripted()
    sink.errors = [ConnectionRefusedError(errno.ECONNREFUSED, "http://secret@host")] * 3
    said: list[dict[str, Any]] = []
    delivery = Delivery(sink, said.append)
    delivery.put(began())
    while not sink.seen:
        assert sink.entered.wait(WAIT_S)
    delivery.put(point(1))
    delivery.close(WAIT_S)
    assert sink.seen == [("begin", "j-1"), ("j-1", [1]), "closed"]
    assert said == [
        {
            "state": "failing",
            "why": "ConnectionRefusedError (Connection refused)",
            "dropped": 0,
        },
        {"state": "works", "dropped": 0},
    ]
