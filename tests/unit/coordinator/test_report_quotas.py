"""Workers' reports within their quotas: the rest is dropped, said and counted."""

from __future__ import annotations

import asyncio

import pytest

from dtd.coordinator.connections.report_quotas import NOTICES_BURST, TELL_EVERY_S, ReportQuotas
from dtd.wire import messages as m


class Thread:
    """Runs nothing before it is told to."""

    def __init__(self):
        self.calls = []

    def later(self, function, *, turn):
        self.calls.append((turn, function))

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
        self.desk = ReportQuotas(
            lines_per_s, self.store, self.thread, self.incident, lambda: self.now
        )

    def incident(self, kind, message, *, worker="", **details):
        self.told.put_nowait((kind, message, worker, details))

    def output(self, payload, worker="w"):
        self.desk.output(worker, m.JobOutput(job="digits-1", rank=3), payload)

    def written(self):
        self.thread.run()
        return [line for batch in self.store.batches for line in batch[3]]


@pytest.fixture
async def world():
    return World()


async def test_notices_beyond_the_share_are_dropped_and_an_answer_to_save_is_not(world):
    notice = m.Notice(job="digits-1", event="row_retried", message="again")
    heeded = [world.desk.accepts("w", notice) for _ in range(int(NOTICES_BURST) + 1)]
    assert heeded == [True] * int(NOTICES_BURST) + [False]
    answer = m.Notice(job="digits-1", event="checkpoint_failed", message="no space")
    assert world.desk.accepts("w", answer)
    async with asyncio.timeout(10):
        _, message, _, _ = await world.told.get()
    assert message.endswith("dropped: notices 1")


async def test_a_second_worker_is_told_of_at_once_while_the_first_goes_on(world):
    notice = m.Notice(job="digits-1", event="row_retried", message="again")

    def exceed(worker):
        while world.desk.accepts(worker, notice):
            pass

    async with asyncio.timeout(10):
        exceed("first")
        assert (await world.told.get())[2] == "first"
        exceed("first")  # told of in a minute
        exceed("second")
        assert (await world.told.get())[2] == "second"


async def test_what_was_dropped_meanwhile_is_told_with_a_later_report(world):
    world.output(b"\n" * 6000)
    world.output(b"\n" * 10)
    world.now += TELL_EVERY_S
    assert world.desk.accepts("w", m.Evaluated(job="j", step=1, metrics={}))
    told = [world.told.get_nowait()[3]["lines"] for _ in range(2)]
    assert told == [2001, 11]
