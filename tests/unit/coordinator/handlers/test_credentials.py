"""Strangers that ask to join are answered at a rate; certificates are renewed on failing disks."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import dtd.coordinator.handlers.credentials as module
from dtd.coordinator.containment import Containment
from dtd.coordinator.handlers.answers import Answers
from dtd.coordinator.handlers.credentials import Joins, Renewals
from dtd.errors import ConfigError, RequestRefused
from dtd.net.rates import Pacing
from dtd.wire import messages as m

PATIENCE_S = 60.0
FULL = OSError(errno.ENOSPC, "No space left on device")
ENROL = m.Enrol(role="worker", name="w", token_id="a", token_secret="b", request_pem="c")


class Link:
    identity = SimpleNamespace()

    def __init__(self, host="10.0.0.1"):
        self.host, self.closing = host, False
        self.said = asyncio.Queue()

    def peer_host(self):
        return self.host

    def send(self, message):
        self.said.put_nowait(message)

    def fail(self, error):
        self.said.put_nowait(error)

    def drained(self):
        return None

    async def hears(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.said.get()


class Audit:
    async def around(self, link, message, work, **_more):
        return await work()


class World:
    """A coordinator whose store fails or refuses, as late as a test wants."""

    def __init__(self):
        self.asked, self.began, self.open = 0, asyncio.Event(), asyncio.Event()
        self.open.set()
        self.fault = RequestRefused("the token is not known here")
        self.answers = Answers(Containment(lambda: 0.0, lambda *_told, **_more: None))
        self.audit, self.kept = Audit(), []
        self.store_thread = SimpleNamespace(run=self.run)
        self.in_store = self.run
        self.links = SimpleNamespace(all=list)
        self.port = SimpleNamespace(
            authority=SimpleNamespace(certificate_pem=b"pem"),
            note_refusal=lambda *_why, **_shown: None,
            coordinators=(),
            links=list,
            check=lambda _link, _message: None,
        )
        self.joins = Joins(self)

    def keep(self, work):
        self.kept.append(asyncio.create_task(work))
        return self.kept[-1]

    async def run(self, *_call, turn=None):
        self.asked += 1
        self.began.set()
        await self.open.wait()
        raise self.fault


@pytest.fixture
async def world():
    return World()


async def test_an_address_waits_for_its_own_guesses_and_others_do_not(world):
    world.joins._of_address = Pacing(rate_per_s=0.001, burst=1.0)
    links = [Link() for _ in range(5)]
    for link in links:
        world.joins.ask(link, ENROL)
    assert "not known here" in (await links[0].hears()).message
    assert "not known here" in (await links[1].hears()).message
    other = Link("10.0.0.2")
    world.joins.ask(other, ENROL)
    assert "not known here" in (await other.hears()).message
    assert world.asked == 3
    for link in (*links, other):
        world.answers.forget(link)  # whoever leaves is not enrolled later
    await asyncio.sleep(0)
    assert len(world.kept) == 3


async def test_what_has_begun_is_done_though_the_caller_is_gone(world):
    world.open.clear()
    link = Link()
    world.joins.ask(link, ENROL)
    await world.began.wait()
    world.answers.forget(link)
    world.open.set()
    async with asyncio.timeout(PATIENCE_S):
        await world.kept[0]
    assert "not known here" in (await link.hears()).message


@pytest.mark.parametrize("fault", [FULL, sqlite3.OperationalError("disk full")])
async def test_a_caller_that_cannot_be_let_in_because_of_the_disk_hears_so(world, fault):
    link, world.fault = Link(), fault
    world.joins.ask(link, ENROL)
    refusal = await link.hears()
    assert "the coordinator's disk failed" in refusal.message
    assert refusal.remedy


# --- renewal -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [FULL, ConfigError("ca.key cannot be written")])
async def test_what_fails_on_the_disk_is_logged_and_keeps_nothing_else_from_being_done(
    world, error, monkeypatch
):
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    asked, enough = [], asyncio.Event()

    async def in_store(function, *_arguments):
        asked.append(function.__name__)
        if asked.count("equip") == 2:
            enough.set()
        raise error

    def equip(): ...

    def keep_time(): ...

    authority = SimpleNamespace(own_are_due=lambda: True, equip=equip, keep_time=keep_time)
    world.port.authority, world.in_store = authority, in_store
    with capture_logs() as lines:
        keeping = asyncio.create_task(Renewals(world).keep())
        async with asyncio.timeout(PATIENCE_S):
            await enough.wait()
        assert not keeping.done()
        keeping.cancel()
    assert asked[:3] == ["equip", "keep_time", "equip"]
    told = [line["error"] for line in lines if line["event"] == "own_credential_not_renewed"]
    assert told == [getattr(error, "message", str(error))]  # of five failures in a moment
