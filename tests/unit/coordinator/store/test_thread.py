"""Blocking calls in a thread of their own: urgent ones first, failures not lost."""

from __future__ import annotations

import threading

import pytest
import structlog

import dtd.coordinator.store.database as module
from dtd.coordinator.store.database import StoreThread


async def test_failures_belong_to_all_that_asked():
    defects = []
    thread = StoreThread(defects.append)

    def fail():
        raise ValueError("no")

    def fill():
        raise OSError("no room")

    with pytest.raises(ValueError, match="no"):
        await thread.run(fail)
    with structlog.testing.capture_logs() as logged:
        thread.later(fail)
        thread.later(fill)
        assert await thread.run(lambda: 5) == 5
    assert [(line["event"], line["error"]) for line in logged] == [("store_failed", "no room")]
    assert [str(one) for one in defects] == ["no"]
    await thread.close(lambda: None)


async def test_a_disk_that_takes_its_time_is_complained_of_while_it_does(monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    thread, begun, go_on = StoreThread(), threading.Event(), threading.Event()
    thread.later(lambda: (begun.set(), go_on.wait(30)))
    assert begun.wait(30)
    assert thread.complaint() == ""
    now_s += module.SLOW_S + 1
    assert thread.complaint() == "one write lasts over 2 s"
    go_on.set()
    await thread.run(int)
    await thread.close(lambda: None)
    assert thread.complaint() == ""
