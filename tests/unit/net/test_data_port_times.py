"""How long somebody can stay at a data port without proving anything, however he goes about it.

Real sockets and a played clock: 5 s for the first byte where TLS is spoken too, 10 s for the
handshake from there on, 20 s in all, TLS included.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dtd.address import Address
from dtd.net.data_port.data_server import UNPROVEN_S, DataServer
from dtd.net.limits import AUTHENTICATE_WITHIN_S as FIRST_BYTE_S
from dtd.net.link import HANDSHAKE_TIMEOUT_S
from dtd.security.credential import server_context
from dtd.wire import messages as m
from dtd.wire.session import DataCredential, Session

CLOCK_S = 0.1
"""How far apart timers of one moment may go off."""

GIVEN_UP_S = 100.0


@pytest.fixture(params=[False, True], ids=["plain", "tls too"])
async def address(request):
    server = DataServer("worker-0", lambda name: None)
    yield await server.listen(
        Address("127.0.0.1", 0), context=server_context() if request.param else None
    )
    server.close()


async def stay(address, octets, *, pause_s):
    """Say these octets one by one with a pause before each; how long the port bore it."""
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    begun_s = loop.time()
    gone = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        for octet in octets:
            done, _ = await asyncio.wait([gone], timeout=pause_s)
            if done:
                break
            writer.write(bytes([octet]))
        async with asyncio.timeout(GIVEN_UP_S):
            await gone
    writer.transport.abort()
    return loop.time() - begun_s


def greeting():
    """The longest thing that a stranger can say in order."""
    credential = DataCredential(secret=b"s" * 32, generation=1, roster_id=1)
    said = credential.hello(m.Role.RING, "worker-1")
    session = Session(role=m.Role.RING, random_bytes=bytes)
    return session.hello(said, secret=b"s" * 32)


async def test_a_peer_that_says_nothing_is_gone_first(address):
    assert await stay(address, b"", pause_s=0) < UNPROVEN_S + CLOCK_S


@pytest.mark.parametrize("first", [b"D", b"\x16"], ids=["frame", "tls"])
async def test_a_peer_that_sends_byte_after_byte_gains_nothing(address, first):
    """A first byte just in time, then one at a time for as long as it goes."""
    words = first + greeting()[1:]
    stayed_s = await stay(address, words, pause_s=0.8 * FIRST_BYTE_S)
    assert stayed_s < UNPROVEN_S + CLOCK_S


async def test_a_peer_that_comes_early_and_never_proves_anything_waits_no_longer(address):
    """In order so far: of a generation that is not known yet."""
    stayed_s = await stay(address, greeting(), pause_s=0)
    assert HANDSHAKE_TIMEOUT_S - CLOCK_S < stayed_s < UNPROVEN_S + CLOCK_S
