"""Links run on asyncio's own event loop and on uvloop, so their tests do as well.

Tests of time limits run on one whose clock is played.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from dtd.address import Address
from dtd.errors import DtdError
from dtd.exchange.api import BucketMemory
from dtd.net.link import Link
from dtd.shared_memory import OfferedMemory
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES
from tests.played_loop import PlayedLoop

PATIENCE_S = 60.0
SECRET = b"s" * 32
WORKER_SECRET = b"w" * 32
NEVER_S = 1 << 40

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, LoopFactory]:
    """The loops on which a test runs, once each."""
    if item.path.name == "test_data_port_times.py":
        return {"played": PlayedLoop}
    if item.path.name in ("test_link.py", "test_tls.py"):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def memory_of() -> Callable[[np.ndarray], BucketMemory]:
    """A function that makes an array the memory of a bucket."""

    def make(array: np.ndarray) -> BucketMemory:
        def add(start: int, stop: int, received: memoryview) -> None:
            array[start:stop] += np.frombuffer(received, dtype=array.dtype)

        return BucketMemory(
            view=memoryview(array.view(np.uint8)), item_bytes=array.itemsize, add=add
        )

    return make


@pytest.fixture
def fd_dir(tmp_path: Path) -> Path:
    """A directory in which open files can be handed over."""
    made = tmp_path / "fd_dir"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def mapped() -> Callable[[OfferedMemory], int]:
    """A function: how often lent memory is mapped into this process.

    Only what is asked for counts: other tests' memory goes whenever it is collected.
    """

    def count(memory: OfferedMemory) -> int:
        inode = str(os.fstat(memory.descriptor).st_ino)
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum("memfd:dtd-buckets" in line and line.split()[4] == inode for line in lines)

    return count


class Peer:
    """The opening side of a link: keeps what arrives until a test asks for it."""

    def __init__(self, hello: m.Hello, secret: bytes) -> None:
        self.link = Link(self, hello=hello, secret=secret)
        self.opened = asyncio.Event()
        self._arrived: asyncio.Queue[tuple[m.Message, bytes]] = asyncio.Queue()
        self._closed: asyncio.Future[DtdError | None] = asyncio.get_running_loop().create_future()

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self.opened.set()

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        self._arrived.put_nowait((message, bytes(payload)))

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self._closed.set_result(error)

    async def welcomed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.opened.wait()

    async def next(self) -> tuple[m.Message, bytes]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._arrived.get()

    async def end(self) -> DtdError | None:
        async with asyncio.timeout(PATIENCE_S):
            return await self._closed


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., Awaitable[Peer]]]:
    """Connects to an address with a role, and says HELLO: with the secret of the generation, or
    with a ticket for a scope."""
    peers = []

    async def connect(
        address: Address, role: m.Role, *, secret: bytes = SECRET, **hello: Any
    ) -> Peer:
        if role is m.Role.FETCH and not hello:
            hello = {"scope": "state/1"}
        if "scope" in hello:
            hello.setdefault("expires_s", NEVER_S)
            secret = ticket_key(WORKER_SECRET, hello["scope"], hello["expires_s"])
        peer = Peer(
            m.Hello(
                role=role,
                name="peer",
                protocol_min=1,
                protocol_max=1,
                version="test",
                max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
                **hello,
            ),
            secret,
        )
        peers.append(peer)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: peer.link, address.host, address.port)
        return peer

    yield connect
    for peer in peers:
        peer.link.abort()
