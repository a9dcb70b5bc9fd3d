"""Delivery to a sink: order, retries, and that no remark repeats what an error says."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from typing import Any

import pytest

from dtd.observe.sinks import process as module
from dtd.observe.sinks.entries import Began, Ended, Entry, Figures, to_line
from dtd.observe.sinks.process import Delivery, batches


class Scripted:
    """A library that fails as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.seen: list[Any] = []
        self.errors = list(errors)

    def _do(self, what: Any) -> None:
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


def began(job: str = "j-1") -> Began:
    return Began(job=job, identity="abc", unix_s=1.0)


def ended(job: str = "j-1") -> Ended:
    return Ended(job=job, identity="abc", unix_s=9.0, state="done", result={"steps": 3.0})


def point(step: int, job: str = "j-1") -> Figures:
    return Figures(job=job, step=step, unix_s=2.0, scalars={"train/loss": 0.5})


def deliver(delivery: Delivery, *entries: Entry) -> None:
    for batch in batches(io.BufferedReader(io.BytesIO(b"".join(map(to_line, entries))))):
        delivery.deliver(batch)


def test_jobs_beside_each_other_share_the_requests() -> None:
    """Their figures alternate; what waits of a job still goes at once, and in its order."""
    sink = Scripted()
    delivery = Delivery(sink, lambda remark: None)
    points = [point(step, job) for step in range(1, 4) for job in ("j-1", "j-2")]
    after = (ended(), began(), point(9), point(4, "j-2"))
    deliver(delivery, began(), began("j-2"), *points, *after)
    assert sink.seen == [
        ("begin", "j-1"),
        ("j-1", [1, 2, 3]),
        ("end", "j-1", "done"),
        ("begin", "j-1"),
        ("j-1", [9]),
        ("begin", "j-2"),
        ("j-2", [1, 2, 3, 4]),
    ]
    assert delivery.dropped == 0


def test_entries_longer_than_a_read_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 7)
    sink = Scripted()
    deliver(Delivery(sink, lambda remark: None), began(), point(1), point(2))
    assert sink.seen == [("begin", "j-1"), ("j-1", [1]), ("j-1", [2])]


def test_what_an_unreachable_server_misses_is_said_once_and_comes_later() -> None:
    sink = Scripted(*[ConnectionRefusedError(errno.ECONNREFUSED, "http://secret@host")] * 3)
    said: list[dict[str, Any]] = []
    deliver(Delivery(sink, said.append), began(), point(1))
    assert sink.seen == [("begin", "j-1"), ("j-1", [1])]
    assert said == [
        {
            "state": "failing",
            "why": "ConnectionRefusedError (Connection refused)",
            "dropped": 0,
        },
        {"state": "works", "dropped": 0},
    ]


def test_what_is_refused_is_dropped_and_counted() -> None:
    said: list[dict[str, Any]] = []
    deliver(Delivery(Scripted(ValueError("secret")), said.append), began(), point(1), point(2))
    assert said == [{"state": "refused", "why": "ValueError", "dropped": 1}]
