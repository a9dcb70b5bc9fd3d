"""Viewers wait for their turn, and nobody gets the next answer before the last one is read."""

from __future__ import annotations

import asyncio

import pytest

import dtd.coordinator.throttles as module
from dtd.coordinator.throttles import ANSWERS_UNDER_WAY, REQUESTS_AT_ONCE, Turns, go_on, read_out
from dtd.net.limits import Pacing
from dtd.security.identity import Identity
from dtd.wire import messages as m


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


async def hold(turns, link, request, entered, go):
    async with turns.turn(link, request):
        entered.append(link)
        await go.wait()


@pytest.mark.parametrize(
    ("role", "request_", "at_once"),
    [
        ("viewer", m.ListJobs(), ANSWERS_UNDER_WAY),
        ("viewer", m.WaitJob(job="digits-1"), 10),
        ("viewer", m.ReadEvents(follow=True), 10),
        ("operator", m.ListJobs(), 10),
    ],
)
async def test_a_viewer_has_few_answers_under_way(role, request_, at_once):
    turns, go, entered = Turns(), asyncio.Event(), []
    links = [Link(role) for _ in range(10)]
    async with asyncio.TaskGroup() as tasks:
        for link in links:
            tasks.create_task(hold(turns, link, request_, entered, go))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(entered) == at_once
        other = tasks.create_task(hold(turns, Link(name="bob"), request_, entered, go))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(entered) == at_once + 1
        assert not other.done()
        go.set()
    assert len(entered) == 11


async def test_a_viewers_requests_have_a_rate_and_an_operators_have_none():
    turns = Turns()
    for _ in range(int(REQUESTS_AT_ONCE) + 1):
        async with turns.turn(Link(), m.GetStatus()):
            pass
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), turns.turn(Link(), m.GetStatus()):
            raise AssertionError("it was too early")
    for role in ("operator", "local"):
        for _ in range(500):
            async with asyncio.timeout(1), turns.turn(Link(role), m.GetStatus()):
                pass


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
