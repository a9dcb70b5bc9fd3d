"""Strangers are answered at a rate, one question at a time, and not without end."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from types import SimpleNamespace

import pytest

from dtd.coordinator.handlers.join import MAX_QUESTIONS, JoinHandler
from dtd.errors import ProtocolError, RequestRefused
from dtd.net.limits import Pacing
from dtd.wire import messages as m

ENROL = m.Enrol(role="worker", name="w", token_id="a", token_secret="b", request_pem="c")


class Link:
    def __init__(self, host="10.0.0.1"):
        self.host = host
        self.identity = None
        self.said = asyncio.Queue()

    def peer_host(self):
        return self.host

    def send(self, message):
        self.said.put_nowait(message)

    def fail(self, error):
        self.said.put_nowait(error)

    async def hears(self):
        async with asyncio.timeout(10):
            return await self.said.get()


class Audit:
    async def around(self, link, message, work, **_more):
        return await work()


@contextlib.contextmanager
def contain(doing, link):
    """As the daemon: what nobody expected costs the connection."""
    try:
        yield
    except ValueError as error:
        link.said.put_nowait((doing, error))


class World:
    """A desk whose store refuses everybody, as late as a test wants."""

    def __init__(self):
        self.asked, self.open = 0, asyncio.Event()
        self.open.set()
        port = SimpleNamespace(
            authority=SimpleNamespace(certificate_pem=b"pem"),
            note_refusal=lambda *_why, **_shown: None,
        )
        self.fault = RequestRefused("the token is not known here")
        self.desk = JoinHandler(port, self.in_store, None, Audit(), contain)

    async def in_store(self, *_call):
        self.asked += 1
        await self.open.wait()
        raise self.fault


@pytest.fixture
async def world():
    return World()


async def test_a_stranger_has_a_few_questions_on_a_connection(world):
    link = Link()
    for _ in range(MAX_QUESTIONS):
        world.desk.ask(link, m.GetAuthority())
        assert (await link.hears()).certificate_pem == "pem"
    with pytest.raises(ProtocolError, match="more than 4 requests to join on one connection"):
        world.desk.ask(link, m.GetAuthority())
    world.desk.forget(link)


async def test_one_question_at_a_time(world):
    link = Link()
    world.desk.ask(link, m.GetAuthority())
    with pytest.raises(ProtocolError, match="unanswered"):
        world.desk.ask(link, m.GetAuthority())
    await link.hears()


async def test_an_address_waits_for_its_own_guesses_and_others_do_not(world):
    world.desk._of_address = Pacing(rate_per_s=0.001, burst=1.0)
    links = [Link() for _ in range(5)]
    for link in links:
        world.desk.ask(link, ENROL)
    assert "not known here" in (await links[0].hears()).message
    assert "not known here" in (await links[1].hears()).message
    other = Link("10.0.0.2")
    world.desk.ask(other, ENROL)
    assert "not known here" in (await other.hears()).message
    assert world.asked == 3
    for link in (*links, other):
        world.desk.forget(link)  # whoever leaves is not enrolled later
    assert not world.desk._tasks
    assert not world.desk._left


async def test_what_has_begun_is_done_though_the_caller_is_gone(world):
    world.open.clear()
    link = Link()
    world.desk.ask(link, ENROL)
    while not world.asked:
        await asyncio.wait(world.desk._tasks.values(), timeout=0.001)
    world.desk.forget(link)
    (left,) = world.desk._left
    world.open.set()
    async with asyncio.timeout(10):
        await left
    assert not world.desk._begun


async def test_all_strangers_share_a_rate(world):
    world.desk._of_all = Pacing(rate_per_s=0.001, burst=1.0)
    links = [Link(f"10.0.0.{number}") for number in range(4)]
    for link in links:
        world.desk.ask(link, m.GetAuthority())
    for link in links[:2]:
        await link.hears()
    assert links[2].said.empty()
    assert links[3].said.empty()
    for link in links:
        world.desk.forget(link)


@pytest.mark.parametrize("fault", [OSError(28, "disk full"), sqlite3.OperationalError("disk full")])
async def test_who_cannot_be_let_in_because_of_the_disk_hears_so(world, fault):
    link, world.fault = Link(), fault
    world.desk.ask(link, ENROL)
    refusal = await link.hears()
    assert "the coordinator's disk failed" in refusal.message
    assert refusal.remedy


async def test_what_nobody_expected_costs_the_connection(world):
    link, world.fault = Link(), ValueError("a defect")
    world.desk.ask(link, ENROL)
    assert await link.hears() == ("answering ENROL", world.fault)
