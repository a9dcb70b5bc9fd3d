"""From reports to the store: training and other workers notice neither a full disk nor a flood."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from dtd.coordinator.store.database import StoreThread
from dtd.observe import recorder as module
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


async def test_all_steps_of_a_message_are_remembered(box):
    box.progress(row(5, loss=0.5), row(6, loss=0.25))
    box.progress(row(7, 2, loss=0.125))
    assert await box.points() == [(5, 0.5), (6, 0.25), (7, 0.125)]


async def test_workers_are_remembered_every_two_seconds(box):
    beat = m.Heartbeat(state="training", job="j-1", memory_bytes=7)
    for moved_s in (0.0, SYSTEM_EVERY_S / 2, SYSTEM_EVERY_S / 2):
        box.now_s += moved_s
        box.recorder.heartbeat("w", "i", beat, "v")
    assert len(await box.points("memory_bytes", workers=True)) == 2
    assert len(await box.points("round_trip_s", workers=True)) == 2


async def test_no_more_waits_than_fits(box, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    box.progress(row(1), row(2), row(3))
    assert box.recorder.dropped == 1


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


async def test_a_store_that_cannot_be_opened_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    box = Box(tmp_path / "file")
    box.progress(row(1))
    await box.write()
    assert [kind for kind, _details in box.events] == ["metrics_stopped"]
    await box.recorder.forget("j-1")
    await box.recorder.close()


async def test_a_damaged_store_is_told(tmp_path):
    (tmp_path / "metrics.sqlite3").write_bytes(b"damaged" * 1000)
    box = Box(tmp_path)
    box.progress(row(1))
    assert len(await box.points()) == 1
    assert [kind for kind, _details in box.events] == ["metrics_set_aside"]
    await box.recorder.forget("j-1")
    assert (await box.ask())["series"] == []
    await box.recorder.close()


async def test_what_waits_at_the_end_is_written(tmp_path):
    first = Box(tmp_path)
    first.progress(row(1))
    await first.recorder.close()
    second = Box(tmp_path)
    assert len(await second.points()) == 1
    await second.recorder.close()


async def test_what_is_reported_while_it_closes_is_written_and_what_comes_later_is_not(tmp_path):
    box = Box(tmp_path)
    box.progress(row(5))
    box.recorder._write()  # under way when it closes
    box.progress(row(6))
    closing = asyncio.create_task(box.recorder.close())
    await asyncio.sleep(0)
    box.progress(row(7))
    await closing
    box.progress(row(8))
    assert box.recorder._timer is None
    again = Box(tmp_path)
    assert [step for step, _loss in await again.points()] == [5, 6, 7]
    await again.recorder.close()


async def test_a_row_that_cannot_be_written_holds_up_no_other(box, monkeypatch):
    """Such a batch was tried again for ever, and nothing after it was written."""
    write = box.recorder._store.write

    def choke(batch, unix_s):
        if any(entry.position == 2 for _identity, entry in batch):
            raise ValueError("a defect")
        write(batch, unix_s)

    monkeypatch.setattr(box.recorder._store, "write", choke)
    box.progress(row(1), row(2), row(3))
    await box.write()
    await box.write()
    assert await box.points() == [(1, 1.0), (3, 1.0)]
    assert (box.recorder.dropped, box.recorder.complaint()) == (1, "")


async def test_rows_of_steps_that_are_not_committed_are_left_out(box):
    box.progress(row(7, 2), row(8, 2), row(7, 3), row(6, 2, step_s=-1.0), row(6, 2, skipped=2))
    assert await box.points() == [(7, 1.0)]


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
