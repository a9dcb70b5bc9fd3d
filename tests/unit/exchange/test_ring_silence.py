"""A ring whose neighbours stop talking, talk one way only, never come, or send damaged bytes.

One endpoint is real; the test plays its only neighbour, both as the next rank and as the previous.
"""

from __future__ import annotations

import asyncio

import pytest

from dtd.address import Address
from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.endpoint import RingEndpoint
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.session import welcome
from tests.unit.exchange.generation import (
    GENERATION,
    PATIENCE_S,
    SECRET,
    assigns,
    data_server,
    hello_of,
)

SILENCE_S = 0.2
BEAT_S = SILENCE_S / 6
RING = hello_of(1)


class Neighbour:
    """The next rank's data port, played by the test: it welcomes or not, and counts beats."""

    def __init__(self):
        self.server = Server(self._new_link)
        self.welcomes = True
        self.opened = asyncio.Event()
        self.link = None
        self.beats = asyncio.Queue()

    def _new_link(self):
        return Link(self, accepts=frozenset({m.Role.RING}))

    def link_opened(self, link, message):
        self.link = link
        self.opened.set()
        if self.welcomes:
            link.welcome(welcome("worker-1"), secret=SECRET)

    def link_place(self, link, message, payload_bytes):
        return None

    def link_received(self, link, message, payload):
        if isinstance(message, m.LinkHeartbeat):
            self.beats.put_nowait(message)

    def link_closed(self, link, error):
        pass


class Scene:
    """The endpoint of rank 0 of 2, and what it reports."""

    def __init__(self, dial):
        self._dial = dial
        self.server = data_server("worker-0")
        self.next = Neighbour()
        self.up = asyncio.Event()
        self.broken = asyncio.get_running_loop().create_future()
        self.words = asyncio.Queue()
        self._beating = []

    async def begin(self, *, next_at=None):
        loopback = Address("127.0.0.1", 0)
        self.own = await self.server.listen(loopback)
        at = next_at or await self.next.server.listen(loopback)
        assign = assigns([self.own, at])[0]
        self.endpoint = RingEndpoint(
            assign,
            self.server,
            chunk_bytes=1 << 20,
            beat_interval_s=BEAT_S,
            silence_s=SILENCE_S,
            listener=self,
        )
        self.endpoint.connect()

    def ring_up(self):
        self.up.set()

    def ring_broken(self, loss):
        self.broken.set_result((loss.suspect, loss.evidence, loss.reason))

    def bucket_done(self, route, bucket):
        """These tests look at links."""

    def gather_done(self, entries):
        self.words.put_nowait(entries)

    async def come_up(self):
        await self.begin()
        self.previous = await self._dial(self.own, m.Role.RING, **RING)
        async with asyncio.timeout(PATIENCE_S):
            await self.up.wait()

    def beat(self, link):
        """Let this link beat for the rest of the test."""

        def again():
            if not link.closing:
                link.send(m.LinkHeartbeat(generation=GENERATION))
                asyncio.get_running_loop().call_later(BEAT_S, again)

        again()

    async def report(self):
        async with asyncio.timeout(PATIENCE_S):
            return await self.broken

    async def several_limits_pass(self):
        """As many beats as the real side sends in three times the limit."""
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(18):
                await self.next.beats.get()

    def close(self):
        self.endpoint.end("the test is over")
        self.server.close()
        self.next.server.close(m.Goodbye())


@pytest.fixture
async def scene(dial):
    made = Scene(dial)
    yield made
    made.close()


async def test_a_next_rank_that_falls_silent(scene):
    await scene.come_up()
    scene.beat(scene.previous.link)
    suspect, evidence, reason = await scene.report()
    assert (suspect, evidence) == ("worker-1", "silent")
    assert reason.startswith("not a byte from worker-1 at 127.0.0.1 for")


async def test_a_frame_that_is_held_does_not_count_as_silence(scene):
    await scene.come_up()
    scene.beat(scene.next.link)
    scene.endpoint.node.open_step(0, ())
    early = m.SmallGather(generation=GENERATION, step=1, sequence=0, hop=0, origin=1, source=1)
    now = m.SmallGather(generation=GENERATION, step=0, sequence=0, hop=0, origin=1, source=1)
    scene.previous.link.send(now, b"word of step 0")
    scene.previous.link.send(early, b"word of step 1")
    await scene.several_limits_pass()
    assert not scene.broken.done()
    scene.beat(scene.previous.link)
    scene.endpoint.node.offer(b"own")
    async with asyncio.timeout(PATIENCE_S):
        assert await scene.words.get() == [b"own", b"word of step 0"]
        scene.endpoint.node.open_step(1, ())
        scene.endpoint.node.offer(b"own")
        assert await scene.words.get() == [b"own", b"word of step 1"]
    assert not scene.broken.done()


async def test_a_next_rank_of_a_newer_generation_is_no_damage(scene):
    scene.next.welcomes = False
    await scene.begin()
    async with asyncio.timeout(PATIENCE_S):
        await scene.next.opened.wait()
    scene.next.link.fail(ProtocolError(ErrorCode.STALE_GENERATION, "worker-1 is in 5"))
    reason = "the handshake failed: STALE_GENERATION"  # and no words of whoever listens there
    assert await scene.report() == ("worker-1", "reset", reason)
