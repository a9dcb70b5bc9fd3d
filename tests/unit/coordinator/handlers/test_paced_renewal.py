"""What members ask beside their work is answered at a rate, and not while answers lie unread."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from types import SimpleNamespace

import pytest

from dtd.coordinator.handlers.renewal import RENEWALS_AT_ONCE, RenewalHandler
from dtd.errors import ProtocolError
from dtd.security import admission
from dtd.security.admission import Renewal
from dtd.wire import messages as m

NOT_YET = Renewal(reason="it is not time")


class Link:
    """A member's connection, whose other side reads when the test says so."""

    def __init__(self, name="w"):
        self.identity = SimpleNamespace(role="worker", name=name, serial="1")
        self.said = 0
        self.unread = None
        self.heard = lambda: None
        self.last = self.ended = None

    def send(self, *messages):
        self.said += 1
        self.last = messages[0]
        self.heard()

    def drained(self):
        return self.unread

    def queued_bytes(self):
        return 0


@contextlib.contextmanager
def contain(doing, link):
    """As the daemon: what nobody expected costs the connection."""
    try:
        yield
    except ValueError as error:
        link.ended = (doing, error)


class World:
    """The handler of RENEW, with a store that counts."""

    def __init__(self):
        self.asked = 0
        self.fails = None
        port = SimpleNamespace(authority=SimpleNamespace(), coordinators=())
        renewals = RenewalHandler(port, self.in_store, lambda _s: None, lambda: (), contain)
        self.desk = (lambda link: renewals.ask(link, m.Renew())), renewals, RENEWALS_AT_ONCE

    async def in_store(self, function, *_arguments):
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        assert function is admission.renew
        return NOT_YET


async def settle():
    for _turn in range(8):
        await asyncio.sleep(0)


async def test_one_credential_is_answered_at_a_rate_on_all_its_connections():
    world = World()
    ask, desk, burst = world.desk
    links = [Link() for _ in range(int(burst) + 20)]
    for link in links:
        ask(link)
    await settle()
    answered = sum(link.said for link in links)
    assert answered == burst + 1  # the last one is a debt
    other = Link("another")
    ask(other)
    await settle()
    assert other.said == 1
    for link in links:
        desk.forget(link)
    asked = world.asked
    await settle()
    assert world.asked == asked
    assert len(asyncio.all_tasks()) == 1


async def test_who_has_not_read_an_answer_gets_no_other():
    world = World()
    ask, _desk, _burst = world.desk
    link = Link()
    link.unread = asyncio.get_running_loop().create_future()
    ask(link)
    await settle()
    assert link.said == 1
    with pytest.raises(ProtocolError, match="is unanswered"):
        ask(link)
    read, link.unread = link.unread, None
    read.set_result(None)
    await settle()
    ask(link)
    await settle()
    assert link.said == 2


@pytest.mark.parametrize("slowly", [False, True])
async def test_who_has_read_an_answer_may_ask_before_anything_else_happens(slowly):
    """The next question can be there before the task that sent the answer has ended."""
    world = World()
    ask, _desk, _burst = world.desk
    link = Link()
    loop = asyncio.get_running_loop()
    link.unread = loop.create_future() if slowly else None
    link.heard = lambda: loop.call_soon(ask, link) if link.said == 1 and not slowly else None
    ask(link)
    await settle()
    if slowly:
        read, link.unread = link.unread, None
        read.set_result(None)
        ask(link)
        await settle()
    assert link.said == 2


@pytest.mark.parametrize("fault", [OSError(28, "disk full"), sqlite3.OperationalError("disk full")])
async def test_a_renewal_that_the_disk_fails_is_answered_and_may_be_asked_for_again(fault):
    world = World()
    ask, desk, _burst = world.desk
    link, world.fails = Link(), fault
    ask(link)
    await settle()
    assert "disk full" in link.last.reason
    assert link.ended is None
    world.fails = None
    ask(link)
    await settle()
    assert (link.said, link.last.reason) == (2, NOT_YET.reason)
    desk.forget(link)


async def test_what_nobody_expected_costs_the_connection_that_waits_for_an_answer():
    world = World()
    ask, _desk, _burst = world.desk
    link, world.fails = Link(), ValueError("a defect")
    ask(link)
    await settle()
    doing, error = link.ended
    assert doing.startswith("answering a RENEW")
    assert error is world.fails
