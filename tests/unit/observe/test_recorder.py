"""From reports to the store: training and other workers notice neither a full disk nor a flood."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from dtd.coordinator.store.database import StoreThread
from dtd.observe.recorder import SYSTEM_EVERY_S, MetricsRecorder
from dtd.wire import messages as m
from dtd.wire.step_rows import pack_step_rows
from tests.unit.observe.reports import progress, row


class Box:
    """A recorder, and what operators were told."""

    def __init__(self, directory):
        self.events = []
        self.now_s = 100.0
        self.thread = StoreThread()
        self.recorder = MetricsRecorder(
            directory,
            1 << 30,
            self.incident,
            run=self.thread.run,
            later=self.thread.later,
            clock=lambda: self.now_s,
            wall=lambda: 1000.0 + self.now_s,
        )

    def incident(self, kind, message, *, worker="", **details):
        self.events.append((kind, details))

    def progress(self, *rows, **changed):
        values = {"job": "j-1", "steps": pack_step_rows(rows)} | changed
        self.recorder.progress("i", progress(**values))

    async def ask(self, **request):
        return await self.recorder.answer(m.GetMetrics(job="j-1", **request))

    async def points(self, name="loss", **request):
        (found,) = (await self.ask(names=(name,), **request))["series"]
        return [(point[0], point[4]) for point in found["points"]]

    async def write(self):
        """Write now what waits, and take notice of the outcome."""
        self.recorder._write()
        await self.thread.run(lambda: None)
        await asyncio.sleep(0)


@pytest.fixture
async def box(tmp_path):
    made = Box(tmp_path)
    yield made
    await made.recorder.close()
    await made.thread.close(lambda: None)


async def test_a_full_disk_is_told_and_nothing_is_lost_when_it_ends_soon(box, monkeypatch):
    def full(*_arguments):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(box.recorder._store, "write", full)
        box.progress(row(1))
        await box.write()
        await box.write()
    assert [kind for kind, _details in box.events] == ["metrics_stopped"]
    assert box.recorder.complaint() == "metrics: database or disk is full"
    assert (await box.ask())["stopped"] == "database or disk is full"
    box.progress(row(2))
    await box.write()
    assert box.events[1:] == [("metrics_resumed", {"dropped": 0})]
    assert box.recorder.complaint() == ""
    assert len(await box.points()) == 2


async def test_a_damaged_store_is_told(tmp_path):
    (tmp_path / "metrics.sqlite3").write_bytes(b"damaged" * 1000)
    box = Box(tmp_path)
    box.progress(row(1))
    assert len(await box.points()) == 1
    assert [kind for kind, _details in box.events] == ["metrics_set_aside"]
    await box.recorder.forget("j-1")
    assert (await box.ask())["series"] == []
    await box.recorder.close()


async def test_a_worker_has_rates_since_its_heartbeat_before(box):
    def heartbeat(**changed):
        beat = m.Heartbeat(state="training", job="j-1", received_bytes=5, **changed)
        box.recorder.heartbeat("w", "i", beat, "")
        box.now_s += SYSTEM_EVERY_S

    heartbeat(cpu_s=10.0, sent_bytes=100)
    heartbeat(cpu_s=14.0, sent_bytes=300)
    heartbeat(cpu_s=1.0, sent_bytes=0)  # another process
    found = {one["name"]: one["points"] for one in (await box.ask(workers=True))["series"]}
    assert [point[4] for point in found["processor_cores"]] == [None, 2.0, None]
    assert [point[4] for point in found["sent_bytes_per_s"]] == [None, 100.0, None]
    assert [point[2] for point in found["gpu_use"]] == [0, 0, 0]
