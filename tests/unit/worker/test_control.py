"""The connection to the coordinator: made again when lost, cut when nothing comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dtd.address import Address
from dtd.errors import DtdError
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.worker.control import SILENT_TIMEOUTS, ControlConnection

PATIENCE_S = 10.0


class FakeCoordinator:
    """Welcomes every worker and keeps what it says."""

    def __init__(self) -> None:
        self.server = Server(self._new_link)
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.heard: asyncio.Queue[m.Message] = asyncio.Queue()

    def _new_link(self) -> Link:
        return Link(self, Connection(opened=False, accepts=frozenset({m.Role.WORKER})))

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        link.welcome(m.Welcome(protocol=1, version="0", name="c", max_payload_bytes=1024))
        self.links.put_nowait(link)

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        self.heard.put_nowait(message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        pass


class Connected:
    """A control connection under test."""

    def __init__(self, address: Address) -> None:
        self.opened: asyncio.Queue[str] = asyncio.Queue()
        self.received: asyncio.Queue[m.Message] = asyncio.Queue()
        self.control = ControlConnection(
            address,
            name="worker-1",
            opened=lambda: self.opened.put_nowait("opened"),
            received=self.received.put_nowait,
        )


async def soon(queue: asyncio.Queue):
    async with asyncio.timeout(PATIENCE_S):
        return await queue.get()


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    made = FakeCoordinator()
    yield made
    made.server.close(m.Goodbye())


@pytest.fixture
async def connected(coordinator: FakeCoordinator) -> AsyncIterator[Connected]:
    address = await coordinator.server.listen(Address("127.0.0.1", 0))
    made = Connected(address)
    task = asyncio.create_task(made.control.keep())
    yield made
    task.cancel()
    made.control.close("the test is over")


async def test_messages_go_both_ways(coordinator: FakeCoordinator, connected: Connected) -> None:
    link = await soon(coordinator.links)
    await soon(connected.opened)
    assert connected.control.is_open
    connected.control.send(m.Leave(reason="why not"))
    assert await soon(coordinator.heard) == m.Leave(reason="why not")
    link.send(m.HeartbeatAck())
    assert await soon(connected.received) == m.HeartbeatAck()


async def test_a_lost_connection_is_made_again(
    coordinator: FakeCoordinator, connected: Connected
) -> None:
    (await soon(coordinator.links)).abort()
    await soon(connected.opened)
    await soon(coordinator.links)
    await soon(connected.opened)
    assert connected.control.is_open


async def test_what_is_sent_without_a_connection_is_lost(coordinator: FakeCoordinator) -> None:
    made = Connected(Address("127.0.0.1", 1))
    made.control.send(m.Leave(reason="nobody hears it"))
    assert not made.control.is_open


async def test_a_connection_on_which_nothing_comes_back_is_cut(
    coordinator: FakeCoordinator, connected: Connected
) -> None:
    link = await soon(coordinator.links)
    await soon(connected.opened)
    link.send(m.Registered(heartbeat_interval_s=0.25, heartbeat_timeout_s=1.5))
    await soon(connected.received)
    now = asyncio.get_running_loop().time()
    limit_s = SILENT_TIMEOUTS * 1.5
    for _ in range(int(limit_s / 0.25)):  # looked at as often as heartbeats are sent
        connected.control.look(now)
        now += 0.25
    assert connected.control.is_open
    connected.control.look(now + 0.3)
    await soon(coordinator.links)
    await soon(connected.opened)
    assert connected.control.is_open
