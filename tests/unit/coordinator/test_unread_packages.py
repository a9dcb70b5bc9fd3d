"""A worker that asks for pieces of a package and reads none does not fill up the memory here."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dtd.coordinator.handlers.packages import PackageCounter
from dtd.coordinator.throttles import MAX_UNANSWERED
from dtd.errors import ProtocolError
from dtd.wire import messages as m

PIECE = m.GetPackage(digest="0" * 64, offset=0)


class Archives:
    def piece(self, _digest, _offset):
        return 8, b"contents"


class Thread:
    async def run(self, function, *arguments):
        return function(*arguments)


class Link:
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


@contextlib.contextmanager
def contain(doing, link):
    """As the daemon: what nobody expected costs the connection."""
    try:
        yield
    except ValueError as error:
        link.ended = (doing, error)


def desk_of(archives):
    return PackageCounter(
        archives, in_use=set, store_thread=Thread(), thread=Thread(), contain=contain
    )


async def settle():
    for _turn in range(8):
        await asyncio.sleep(0)


async def test_pieces_that_are_not_read_count_as_unanswered():
    counter = desk_of(Archives())
    link = Link()
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


async def test_what_nobody_expected_costs_the_connection():
    class Damaged:
        def piece(self, _digest, _offset):
            raise ValueError("a defect")

    counter, link = desk_of(Damaged()), Link()
    counter.ask(link, PIECE)
    await settle()
    doing, error = link.ended
    assert (doing, str(error)) == ("answering GET_PACKAGE", "a defect")
