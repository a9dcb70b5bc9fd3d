"""Nobody gets the next answer before the last one is read."""

from __future__ import annotations

import asyncio

import dtd.coordinator.throttles as module
from dtd.coordinator.throttles import go_on, read_out
from dtd.net.limits import Pacing
from dtd.security.identity import Identity


class Link:
    def __init__(self, role="viewer", name="ann"):
        self.identity = Identity(role=role, name=name, serial="ab", where="certificate")
        self.queued, self.aborted = 0, False
        self.drains = []

    def queued_bytes(self):
        return self.queued

    def drained(self):
        if not self.queued:
            return None
        self.drains.append(asyncio.get_running_loop().create_future())
        return self.drains[-1]

    def abort(self):
        self.aborted = True


async def test_whoever_waits_goes_on_in_the_end():
    pacing = Pacing(rate_per_s=1000.0, burst=1.0)
    async with asyncio.timeout(10):
        for _ in range(20):
            await go_on(pacing, "ann")


async def test_an_answer_that_is_read_ends_the_turn():
    link = Link()
    await read_out(link)
    link.queued = 100
    reading = asyncio.create_task(read_out(link))
    await asyncio.sleep(0)
    link.queued = 0
    link.drains[0].set_result(None)
    await reading
    assert not link.aborted


async def test_a_connection_that_takes_nothing_is_cut_and_a_slow_one_is_not(monkeypatch):
    monkeypatch.setattr(module, "UNREAD_S", 0.01)
    link = Link()
    link.queued = 3
    sizes = iter([3, 2, 2, 2])  # a byte was taken in the first while
    link.queued_bytes = lambda: next(sizes)
    async with asyncio.timeout(10):
        await read_out(link)
    assert link.aborted
    assert len(link.drains) == 2
