"""A worker that talks too fast is read later, and nobody else is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import dtd.coordinator.throttles as module
from dtd.coordinator.containment import Containment
from dtd.coordinator.handlers.packages import PackageCounter
from dtd.coordinator.throttles import (
    MAX_UNANSWERED,
    MESSAGES_AT_ONCE,
    REGISTERED_AT_ONCE,
    Answers,
    Pace,
    read_out,
    wait_turn,
)
from dtd.errors import ProtocolError
from dtd.net.limits import Pacing
from dtd.security.identity import Identity
from dtd.wire import messages as m
from dtd.wire.frames import Hold


class Link:
    def __init__(self, role="worker", name="host", *, speaks=m.Role.WORKER):
        self.identity = Identity(role=role, name=name, serial="ab", where="certificate")
        self.session = SimpleNamespace(role=speaks)
        self.resumed = asyncio.Event()

    def resume(self):
        self.resumed.set()


def said(pace, link):
    """What becomes of one more message."""
    return pace.place(link, m.Heartbeat(state="idle"), 0)


def heard(pace, link, payload_bytes=0):
    """How many messages go through before one has to wait; None: all do."""
    for count in range(1, 1000):
        if isinstance(pace.place(link, m.Heartbeat(state="idle"), payload_bytes), Hold):
            return count - 1
    return None


async def test_a_flood_of_messages_waits_and_goes_on():
    pace, link = Pace(), Link()
    assert heard(pace, link) == MESSAGES_AT_ONCE + 1
    async with asyncio.timeout(10):
        await link.resumed.wait()
    assert said(pace, link) is None


async def test_workers_of_one_credential_share_a_rate_and_others_have_theirs():
    pace = Pace()
    heard(pace, Link())
    assert isinstance(said(pace, Link()), Hold)
    assert said(pace, Link(name="other")) is None


async def test_workers_of_the_coordinators_own_user_are_told_apart():
    pace, first, second = Pace(), Link("local"), Link("local")
    heard(pace, first)
    assert said(pace, second) is None


async def test_a_worker_that_comes_and_goes_waits_to_be_let_in_and_others_do_not():
    def register(name):
        return m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="here",
            device="cpu",
            data_host="127.0.0.1",
            data_port=1,
            version="1",
        )

    pace = Pace()
    came = [pace.place(Link(), register("w"), 0) for _ in range(100)]
    assert came.count(None) == REGISTERED_AT_ONCE + 1
    assert pace.place(Link(), register("other"), 0) is None
    assert said(pace, Link()) is None


# --- unread answers -----------------------------------------------------------------------------


class Reader:
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
            await wait_turn(pacing, "ann")


async def test_an_answer_that_is_read_ends_the_turn():
    link = Reader()
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
    link = Reader()
    link.queued = 3
    sizes = iter([3, 2, 2, 2])  # a byte was taken in the first while
    link.queued_bytes = lambda: next(sizes)
    async with asyncio.timeout(10):
        await read_out(link)
    assert link.aborted
    assert len(link.drains) == 2


PIECE = m.GetPackage(digest="0" * 64, offset=0)


class Archives:
    def piece(self, _digest, _offset):
        return 8, b"contents"


class Thread:
    async def run(self, function, *arguments):
        return function(*arguments)


class Asker:
    def __init__(self):
        self.said = 0
        self.ended = None
        self.read = asyncio.get_running_loop().create_future()

    def send(self, *_message):
        self.said += 1

    def drained(self):
        return None if self.read.done() else self.read

    def queued_bytes(self):
        return 8 * self.said


async def settle():
    for _turn in range(8):
        await asyncio.sleep(0)


async def test_pieces_that_are_not_read_count_as_unanswered():
    counter = PackageCounter(
        Archives(),
        in_use=set,
        store_thread=Thread(),
        thread=Thread(),
        answers=Answers(Containment(lambda: 0.0, lambda *_told, **_more: None)),
    )
    link = Asker()
    for _ in range(MAX_UNANSWERED):
        counter.ask(link, PIECE)
        await settle()
    assert link.said == MAX_UNANSWERED
    with pytest.raises(ProtocolError, match="4 GET_PACKAGE are unanswered"):
        counter.ask(link, PIECE)
    link.read.set_result(None)
    await settle()
    counter.ask(link, PIECE)
    await settle()
    assert link.said == MAX_UNANSWERED + 1
