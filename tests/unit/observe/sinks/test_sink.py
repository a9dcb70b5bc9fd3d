"""Delivery to a sink: order, bounds, retries, and that no remark repeats what an error says."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dtd.observe.sinks import process as module
from dtd.observe.sinks.entries import Began, Ended, Entry, Figures, from_line, to_line
from dtd.observe.sinks.process import Delivery, reason

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


def deliver(sink: Scripted, *entries: Entry) -> tuple[Delivery, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []
    delivery = Delivery(sink, said.append)
    for entry in entries:
        delivery.put(entry)
    delivery.close(WAIT_S)
    return delivery, said


@pytest.mark.parametrize(
    "entry",
    [
        Began(job="j-1", identity="a", unix_s=1.5, settings={"a.b": "1"}, tags={"t": "x\n\u202e"}),
        point(7),
        ended(),
    ],
)
def test_an_entry_survives_its_line(entry: Entry) -> None:
    line = to_line(entry)
    assert line.count(b"\n") == 1
    assert from_line(line) == entry


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


def test_what_is_refused_is_dropped_and_the_rest_goes_on() -> None:
    sink = Scripted()
    sink.errors = [ValueError("http://secret@host")]
    delivery, said = deliver(sink, began(), point(1), point(2), began("j-2"), point(5, "j-2"))
    assert sink.seen == [("begin", "j-2"), ("j-2", [5]), "closed"]
    assert said == [{"state": "refused", "why": "ValueError", "dropped": 1}]
    assert delivery.dropped == 3  # and the figures of a job that could not begin


def test_the_oldest_figures_make_room_and_are_counted(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    sink = Scripted()
    sink.go.clear()
    delivery = Delivery(sink, lambda remark: None)
    delivery.put(began())
    assert sink.entered.wait(WAIT_S)
    for step in range(1, 6):
        delivery.put(point(step))
    for job in ("j-2", "j-3", "j-4"):
        delivery.put(began(job))
    sink.go.set()
    delivery.close(WAIT_S)
    assert sink.seen == [
        ("begin", "j-1"),
        ("j-1", [4, 5]),
        ("begin", "j-2"),
        ("begin", "j-3"),
        ("begin", "j-4"),
        "closed",
    ]
    assert delivery.dropped == 3


def test_a_reason_names_kinds_of_errors_and_nothing_that_they_say() -> None:
    class RefusedByServer(Exception):
        error_code = "PERMISSION_DENIED"

    class Lying(Exception):
        error_code = "http://secret@host"

    lying = Lying("secret")
    lying.__cause__ = ConnectionResetError(errno.ECONNRESET, "secret")
    assert reason(lying) == "Lying, from ConnectionResetError (Connection reset by peer)"
    assert reason(RefusedByServer("secret")) == "RefusedByServer (PERMISSION_DENIED)"
    endless = ValueError("secret")
    endless.__context__ = KeyError("secret")
    endless.__context__.__context__ = endless
    assert reason(endless).count("ValueError") <= 4
