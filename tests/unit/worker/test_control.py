"""The connection to the coordinator: made again when lost, cut when nothing comes back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from dtd.address import SocketPath
from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.security.identity import LocalUsers
from dtd.security.targets import Target
from dtd.wire import messages as m
from dtd.worker.control import SILENT_TIMEOUTS, ControlConnection

PATIENCE_S = 60.0


class FakeCoordinator:
    """Welcomes every worker and keeps what it says."""

    def __init__(self) -> None:
        self.server = Server(self._new_link)
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.heard: asyncio.Queue[m.Message] = asyncio.Queue()

    def _new_link(self) -> Link:
        return Link(self, accepts=frozenset({m.Role.WORKER}))

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

    def __init__(self, state_dir: Path, *addresses: SocketPath) -> None:
        self.opened: asyncio.Queue[str] = asyncio.Queue()
        self.received: asyncio.Queue[m.Message] = asyncio.Queue()
        self.control = ControlConnection(
            lambda: [Target(address) for address in addresses],
            name="worker-1",
            opened=lambda: self.opened.put_nowait("opened"),
            received=lambda message, payload: self.received.put_nowait((message, bytes(payload))),
        )


def serve_at(coordinator: FakeCoordinator, path: Path) -> SocketPath:
    at = SocketPath(str(path))
    coordinator.server.bind_path(at)
    coordinator.server.serve(users=LocalUsers(own_uid=os.geteuid()))
    return at


async def soon(queue: asyncio.Queue):
    async with asyncio.timeout(PATIENCE_S):
        return await queue.get()


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    made = FakeCoordinator()
    yield made
    made.server.close(m.Goodbye())


@pytest.fixture
async def connected(coordinator: FakeCoordinator, tmp_path: Path) -> AsyncIterator[Connected]:
    address = serve_at(coordinator, tmp_path / "control.sock")
    made = Connected(tmp_path, address)
    task = asyncio.create_task(made.control.keep())
    yield made
    task.cancel()
    await made.control.leave("the test is over")


async def test_the_last_words_arrive_under_an_answer_that_is_on_its_way(
    coordinator: FakeCoordinator, connected: Connected
) -> None:
    link = await soon(coordinator.links)
    await soon(connected.opened)
    link._transport.pause_reading()
    connected.control.send(m.Leave(reason="last"))
    leaving = asyncio.create_task(connected.control.leave("it leaves"))
    await asyncio.sleep(0)
    link.send(m.HeartbeatAck())
    await soon(connected.received)
    link._transport.resume_reading()
    await leaving
    assert await soon(coordinator.heard) == m.Leave(reason="last")


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


async def test_the_next_heartbeat_follows_the_answer_to_the_last_one(
    coordinator: FakeCoordinator, connected: Connected
) -> None:
    link = await soon(coordinator.links)
    await soon(connected.opened)
    for step in (1, 2):  # the second one would wait in front of a coordinator that is late
        connected.control.beat(m.Heartbeat(state="running", step=step))
    connected.control.send(m.Leave(reason="not a heartbeat"))
    link.send(m.HeartbeatAck())
    await soon(connected.received)
    connected.control.beat(m.Heartbeat(state="running", step=3))
    said = [await soon(coordinator.heard) for _ in range(3)]
    assert [getattr(one, "step", 0) for one in said] == [1, 0, 3]


async def test_a_refusal_is_logged_once_however_often_it_asks(tmp_path: Path) -> None:
    """Also where another address is called in between, at which nothing listens."""
    coordinator = FakeCoordinator()
    address = serve_at(coordinator, tmp_path / "control.sock")
    made = Connected(tmp_path, address, SocketPath(str(tmp_path / "nobody.sock")))
    refusal = ProtocolError(ErrorCode.REFUSED, "two workers use the name w", remedy="rename one")
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(made.control.keep())
        for _ in range(4):
            (await soon(coordinator.links)).fail(refusal)
        link = await soon(coordinator.links)
        link.send(m.Registered(heartbeat_interval_s=60, heartbeat_timeout_s=60))
        await soon(made.received)
        await made.control.leave("the test is over")
        task.cancel()
        coordinator.server.close(m.Goodbye())
    assert [(one["event"], one["log_level"]) for one in logs] == [
        ("registration_refused", "warning"),
        ("coordinator_unreachable", "warning"),
        ("coordinator_connected", "info"),
    ]
    assert (logs[0]["worker"], logs[0]["remedy"]) == ("worker-1", "rename one")
