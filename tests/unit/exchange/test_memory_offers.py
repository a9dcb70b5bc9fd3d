"""Memory that a ring offers and maps: offers, agreement, reading, and refusals."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.exchange.api import BucketMemory, BufferLocation
from dtd.exchange.memory_offers import NOTHING_SHARED, SharedMemory
from dtd.exchange.schedule.chunks import BucketShape
from dtd.host.shared_memory import HEAD_BYTES, OfferedMemory
from dtd.net.descriptors import post
from dtd.wire import messages as m

PATIENCE_S = 60.0
GENERATION = 5
WORDS = b"gradients"


class Side:
    """The loans of one rank, and what it has said to the other, which hears it at once or never."""

    def __init__(self, fd_dir, generation=GENERATION):
        self.same_host = True
        self.said = []
        self.borrowed = asyncio.Event()
        self.other = None
        self.offers = SharedMemory(generation, links=self, fd_dir=fd_dir)

    def is_next_on_this_host(self):
        return self.same_host

    def tell_next(self, message):
        self._say(message)

    def tell_previous(self, message):
        self._say(message)

    def _say(self, message):
        self.said.append(message)
        if self.other is not None and not isinstance(message, m.ShmReleased):
            self.other.offers.received(message)
        if isinstance(message, m.ShmMapped):
            self.borrowed.set()


class Lender:
    """Memory, and the buckets that lie in it one after the other."""

    def __init__(self, *contents):
        self.memory = OfferedMemory(sum(map(len, contents)))
        self.buckets, offset = [], HEAD_BYTES
        for content in contents:
            view = self.memory.view(offset, len(content))
            view[:] = content
            self.buckets.append(bucket(view, BufferLocation(self.memory, offset)))
            offset += len(content)


def bucket(view, home=None):
    return BucketMemory(
        view=view,
        shape=BucketShape(elements=len(view), item_bytes=1),
        add=lambda *_: None,
        home=home,
    )


@pytest.fixture
async def sides(fd_dir):
    """(the rank that lends, the one that borrows), who hear each other."""
    one, other = Side(fd_dir), Side(fd_dir)
    one.other, other.other = other, one
    yield one, other
    one.offers.close()
    other.offers.close()


@pytest.fixture
def lender():
    made = Lender(WORDS, b"more")
    yield made
    made.memory.close()


async def agree(sides, buckets):
    """The first step offers; the next rank asks, gets, and says so."""
    one, other = sides
    assert one.offers.offer(buckets) == NOTHING_SHARED
    async with asyncio.timeout(PATIENCE_S):
        await other.borrowed.wait()
    other.borrowed.clear()


def put_aside():
    """Wait for what was left to threads."""
    for thread in threading.enumerate():
        if thread.name == "descriptors":
            thread.join(PATIENCE_S)


def refused(act, *arguments):
    with pytest.raises(ProtocolError) as caught:
        act(*arguments)
    return caught.value


# --- agreeing ------------------------------------------------------------------------------------


async def test_what_is_offered_is_lent_from_the_next_step_on(sides, lender):
    one, other = sides
    await agree(sides, lender.buckets)
    assert one.offers.offer(lender.buckets) == (1, {0, 1})
    lender.memory.revoke()
    assert one.offers.offer(lender.buckets) == (2, {0, 1})
    assert [type(message) for message in one.said] == [m.ShmOffer]
    assert [type(message) for message in other.said] == [m.ShmRequest, m.ShmMapped]
    assert bytes(other.offers.read(0, 0, 9)) == WORDS
    assert bytes(other.offers.read(1, 1, 3)) == b"or"
    other.offers.check_unchanged(2)


@pytest.mark.parametrize("generation", [GENERATION - 1, GENERATION + 1])
async def test_other_generations_are_refused(lender, generation, fd_dir):
    side = Side(fd_dir)
    side.offers.offer(lender.buckets)
    (lend,) = side.said
    for message in (
        m.ShmOffer(generation=generation, number=1, nonce=lend.nonce, size_bytes=0, lots=lend.lots),
        m.ShmRequest(generation=generation, number=1, socket="dtd-x"),
        m.ShmMapped(generation=generation, number=1),
    ):
        assert refused(side.offers.received, message).code == ErrorCode.STALE_GENERATION


# --- the post ------------------------------------------------------------------------------------


async def test_a_wrong_file_is_passed_over(lender, open_files, fd_dir):
    one, other = Side(fd_dir), Side(fd_dir)
    strange = Lender(WORDS, b"more")
    reading, writing = os.pipe()
    before = open_files()
    one.offers.offer(lender.buckets)
    other.offers.received(one.said[0])
    (asked,) = other.said
    for descriptor in (reading, strange.memory.descriptor, lender.memory.descriptor):
        post(asked.socket, descriptor)
    async with asyncio.timeout(PATIENCE_S):
        await other.borrowed.wait()
    assert bytes(other.offers.read(0, 0, 9)) == WORDS
    assert len(other.said) == 2
    other.offers.close()
    put_aside()
    assert open_files() <= before
    strange.memory.close()
    os.close(reading)
    os.close(writing)
