"""Workers' reports within their shares: written in small batches, the rest said and counted."""

from __future__ import annotations

import asyncio

import pytest

import dtd.coordinator.throttles as module
from dtd.coordinator.throttles import LINES_AT_ONCE, ReportQuotas
from dtd.net.limits import FIGURES_BURST, LINES, NOTICES_BURST, Quotas
from dtd.wire import messages as m


class Thread:
    """Runs nothing before it is told to."""

    def __init__(self):
        self.calls = []
        self.called = asyncio.Event()

    def later(self, function, *, turn):
        self.calls.append((turn, function))
        self.called.set()

    def run(self):
        while self.calls:
            self.calls.pop(0)[1]()


class Store:
    def __init__(self):
        self.batches = []

    def add_lines(self, job, rank, worker, lines):
        self.batches.append((job, rank, worker, lines))


class World:
    def __init__(self, lines_per_s=1000):
        self.now = 100.0
        self.told = asyncio.Queue()
        self.thread, self.store = Thread(), Store()
        self.quotas = Quotas(lines_per_s)
        self.desk = ReportQuotas(
            self.quotas, self.store, self.thread, self.incident, lambda: self.now
        )

    def incident(self, kind, message, *, worker="", **details):
        self.told.put_nowait((kind, message, worker, details))

    def output(self, payload, worker="w"):
        self.desk.output(worker, m.JobOutput(job="digits-1", rank=3), payload)

    async def marked(self, line):
        while line not in self.written():
            self.thread.called.clear()
            await self.thread.called.wait()

    def written(self):
        self.thread.run()
        return [line for batch in self.store.batches for line in batch[3]]


@pytest.fixture
async def world():
    made = World()
    yield made
    made.desk.close()


async def test_lines_are_written_in_the_last_turn_a_few_at_a_time(world):
    world.output(b"\n".join(b"%d" % number for number in range(2 * LINES_AT_ONCE + 1)))
    assert {turn for turn, _ in world.thread.calls} == {module.Turn.PATIENT}
    assert world.written() == [str(number) for number in range(2 * LINES_AT_ONCE + 1)]
    assert [len(batch[3]) for batch in world.store.batches] == [LINES_AT_ONCE, LINES_AT_ONCE, 1]
    assert world.store.batches[0][:3] == ("digits-1", 3, "w")
    assert not world.desk.dropped()


async def test_lines_beyond_the_share_leave_one_line_and_one_event(world):
    world.output(b"\n" * 10_000)
    written = world.written()
    assert len(written) == 4001
    assert written[-1] == "... 6001 lines dropped: more than 1000 a second"
    async with asyncio.timeout(10):
        kind, message, worker, details = await world.told.get()
    assert (kind, worker, details) == ("share_exceeded", "w", {LINES: 6001})
    assert message == "w reports more than its quota: 6001 lines were dropped"
    assert world.desk.dropped() == {("w", LINES): 6001}


async def test_what_was_left_out_last_is_marked_though_nothing_follows(world, monkeypatch):
    monkeypatch.setattr("dtd.net.limits.MARK_EVERY_S", 0.01)
    world.output(b"\n" * 10_000)
    world.output(b"\n" * 10)
    world.now += 0.02
    async with asyncio.timeout(10):
        await world.marked("... 11 lines dropped: more than 1000 a second")


async def test_notices_and_figures_beyond_the_share_are_not_heeded(world):
    notice = m.Notice(job="digits-1", event="row_retried", message="again")
    heeded = [world.desk.accepts("w", notice) for _ in range(int(NOTICES_BURST) + 1)]
    assert heeded == [True] * int(NOTICES_BURST) + [False]
    evaluated = m.Evaluated(job="digits-1", step=1, metrics={})
    heeded = [world.desk.accepts("w", evaluated) for _ in range(int(FIGURES_BURST) + 1)]
    assert heeded == [True] * int(FIGURES_BURST) + [False]
    assert all(world.desk.accepts("w", m.Heartbeat(state="idle")) for _ in range(500))
    async with asyncio.timeout(10):
        _, message, _, _ = await world.told.get()
    assert message.endswith(("1 figures and 1 notices were dropped", "1 notices were dropped"))
