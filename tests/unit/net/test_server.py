"""Listening: addresses, the limit on connections, and an orderly end."""

from __future__ import annotations

import asyncio

import pytest

from dtd.address import Address
from dtd.errors import ConfigError
from dtd.net.limits import ConnectionLimiter, OpenConnections
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.wire import messages as m

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 60.0


class Welcoming:
    """Welcomes everyone, and counts."""

    def __init__(self):
        self.server = Server(
            self._new_link,
            connection_limiter=ConnectionLimiter(),
            connections=OpenConnections(2),
        )
        self.gone = asyncio.Queue()

    def _new_link(self):
        return Link(self, accepts=frozenset({m.Role.CTL}))

    def link_opened(self, link, message):
        link.welcome(m.Welcome(protocol=1, version="test", name="s", max_payload_bytes=1 << 20))

    def link_received(self, link, message, payload):
        raise AssertionError("nothing is sent")

    def link_closed(self, link, error):
        self.gone.put_nowait(error)


@pytest.fixture
async def welcoming():
    made = Welcoming()
    yield made
    made.server.close(m.Goodbye())


async def test_an_address_in_use_is_named_with_a_remedy(welcoming):
    bound = await welcoming.server.listen(LOOPBACK)
    with pytest.raises(ConfigError, match=f"listen address {bound} is in use") as caught:
        await Server(welcoming._new_link).listen(bound)
    assert "--listen" in caught.value.remedy


async def test_one_connection_too_many_is_dropped_until_another_ends(welcoming, dial):
    bound = await welcoming.server.listen(LOOPBACK)
    first, second = [await dial(bound, m.Role.CTL, secret=b"") for _ in range(2)]
    await first.welcomed()
    await second.welcomed()
    third = await dial(bound, m.Role.CTL, secret=b"")
    assert await third.end() is not None
    async with asyncio.timeout(PATIENCE_S):
        first.link.close()
        await welcoming.gone.get()
    fourth = await dial(bound, m.Role.CTL, secret=b"")
    await fourth.welcomed()
    assert not second.link.closing


async def test_when_no_more_files_can_be_opened_the_newest_stranger_makes_way(welcoming, dial):
    bound = await welcoming.server.listen(LOOPBACK)
    first, second = [await dial(bound, m.Role.CTL, secret=b"") for _ in range(2)]
    await first.welcomed()
    await second.welcomed()
    welcoming.server._make_room()  # what an accept(2) that fails with EMFILE leads to
    assert await second.end() is not None
    assert not first.link.closing
    third = await dial(bound, m.Role.CTL, secret=b"")
    await third.welcomed()
