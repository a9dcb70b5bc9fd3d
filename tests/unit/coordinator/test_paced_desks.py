"""What members ask beside their work is answered at a rate, and not while answers lie unread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dtd.coordinator.handlers.renewal import RENEWALS_AT_ONCE, RenewalHandler
from dtd.coordinator.handlers.revocation import LISTS_AT_ONCE, RevocationHandler
from dtd.errors import ProtocolError
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

    def send(self, *_message):
        self.said += 1
        self.heard()

    def drained(self):
        return self.unread

    def queued_bytes(self):
        return 0


class World:
    """Both desks, with a store that counts."""

    def __init__(self):
        self.asked = 0
        admission = SimpleNamespace(renew=lambda *_call: NOT_YET)
        authority = SimpleNamespace(admission=admission, revocations=lambda: b"1\n{}")
        port = SimpleNamespace(authority=authority, coordinators=())
        renewals = RenewalHandler(port, self.in_store, lambda _s: None, lambda: (), None)
        revocations = RevocationHandler(port, self.in_store, None)
        self.desks = {
            "renew": (lambda link: renewals.ask(link, m.Renew()), renewals, RENEWALS_AT_ONCE),
            "list": (lambda link: revocations.heard(link, b""), revocations, LISTS_AT_ONCE),
        }

    async def in_store(self, function, *arguments):
        self.asked += 1
        return function(*arguments)


async def settle():
    for _turn in range(8):
        await asyncio.sleep(0)


@pytest.mark.parametrize("which", ["renew", "list"])
async def test_one_credential_is_answered_at_a_rate_on_all_its_connections(which):
    world = World()
    ask, desk, burst = world.desks[which]
    links = [Link() for _ in range(int(burst) + 20)]
    for link in links:
        ask(link)
    await settle()
    answered = sum(link.said for link in links)
    assert burst <= answered < burst + 4
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


@pytest.mark.parametrize("which", ["renew", "list"])
async def test_who_has_not_read_an_answer_gets_no_other(which):
    world = World()
    ask, _desk, _burst = world.desks[which]
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


@pytest.mark.parametrize("which", ["renew", "list"])
@pytest.mark.parametrize("slowly", [False, True])
async def test_who_has_read_an_answer_may_ask_before_anything_else_happens(which, slowly):
    """The next question can be there before the task that sent the answer has ended."""
    world = World()
    ask, _desk, _burst = world.desks[which]
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
