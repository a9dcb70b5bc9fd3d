"""Connections over TLS, on asyncio's own loop and on uvloop: who gets in, and what passes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dtd.address import Address
from dtd.errors import DtdError
from dtd.net import limits as connection_limiter
from dtd.net.limits import ConnectionLimiter
from dtd.net.link import Link
from dtd.net.server import Server
from dtd.security.authority import Authority
from dtd.security.credential import Credential, bare_client_context
from dtd.wire import messages as m
from dtd.wire.session import hello, welcome

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 60.0
MIB = 1024 * 1024


def credential_of(authority: Authority, role: str, name: str = "host7") -> Credential:
    path = authority.directory / f"{role}.credential"
    authority.enrol(path, role, name, coordinators=(Address("10.0.0.1", 7117),))
    return Credential.load(path)


class Listening:
    """Welcomes everybody whom TLS lets in, and sends back what it gets."""

    def __init__(self, authority: Authority, door: ConnectionLimiter | None = None) -> None:
        self.authority = authority
        self.refused: asyncio.Queue[str] = asyncio.Queue()
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.door = ConnectionLimiter() if door is None else door
        self.server = Server(
            self._new_link,
            connection_limiter=self.door,
            refused=lambda _host, why: self.refused.put_nowait(why),
        )

    async def listen(self) -> Address:
        bound = await self.server.bind(LOOPBACK)
        self.server.serve(context=self.authority.server_context())
        return bound

    def _new_link(self) -> Link:
        accepts = frozenset({m.Role.WORKER, m.Role.JOIN})
        return Link(self, accepts=accepts)

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self.links.put_nowait(link)
        link.welcome(welcome("coordinator"))

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        link.send(m.Registered(heartbeat_interval_s=len(payload), heartbeat_timeout_s=sum(payload)))

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        pass


class Calling:
    """The other side."""

    def __init__(self, role: m.Role = m.Role.WORKER, peer_role: str = "coordinator") -> None:
        self.link = Link(self, hello=hello(role, "caller"), peer_role=peer_role)
        self.opened = asyncio.Event()
        self.received: asyncio.Queue[m.Message] = asyncio.Queue()
        self.ended: asyncio.Future[DtdError | None] = asyncio.get_running_loop().create_future()

    async def call(self, address: Address, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_S):
            await loop.create_connection(
                lambda: self.link, address.host, address.port, ssl=context, server_hostname=""
            )

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self.opened.set()

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        self.received.put_nowait(message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self.ended.set_result(error)


async def soon(awaitable: Any) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return await awaitable


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki")


@pytest.fixture
async def listening(authority: Authority) -> AsyncIterator[Listening]:
    made = Listening(authority)
    yield made
    made.server.close(m.Goodbye())


async def test_both_sides_know_each_other_and_large_payloads_pass(
    listening: Listening, authority: Authority
) -> None:
    address = await listening.listen()
    calling = Calling()
    await calling.call(address, credential_of(authority, "worker").client_context())
    await soon(calling.opened.wait())
    accepted = await soon(listening.links.get())
    assert (accepted.identity.role, accepted.identity.name) == ("worker", "host7")
    assert calling.link.identity is not None
    assert calling.link.identity.role == "coordinator"
    assert len(listening.door._unproven) == 0
    for number in range(4):
        payload = bytes([number + 1]) * MIB
        calling.link.send(m.JobOutput(job="j", rank=0), memoryview(payload))
        drained = calling.link.drained()
        if drained is not None:
            await soon(drained)
    answers = [await soon(calling.received.get()) for _ in range(4)]
    assert [one.heartbeat_interval_s for one in answers] == [MIB] * 4
    assert [one.heartbeat_timeout_s for one in answers] == [MIB * (n + 1) for n in range(4)]
    calling.link.send(m.Goodbye(reason="done"))
    calling.link.close()
    assert await soon(calling.ended) is None


async def test_a_credential_of_another_cluster_does_not_get_in(
    listening: Listening, tmp_path: Path
) -> None:
    address = await listening.listen()
    other = Authority.create(tmp_path / "other")
    foreign = credential_of(other, "worker").client_context()
    foreign.verify_mode = ssl.CERT_NONE  # it does not even mind whom it calls
    calling = Calling(peer_role="")
    await calling.call(address, foreign)
    assert await soon(calling.ended) is not None
    assert await soon(listening.refused.get()) == "its certificate is from another cluster"
    assert len(listening.door._unproven) == 0


async def test_an_expired_credential_does_not_get_in(
    listening: Listening, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "life_days", 0)
    address = await listening.listen()
    path = authority.directory / "late.pem"
    authority.enrol(path, "worker", "late", coordinators=(address,))
    monkeypatch.undo()
    (authority.directory / "server.pem").unlink()
    context = bare_client_context()
    context.load_cert_chain(path)
    calling = Calling(peer_role="")
    await calling.call(address, context)
    assert await soon(calling.ended) is not None
    assert await soon(listening.refused.get()) == "its certificate has expired by this host's clock"


async def test_a_rogue_coordinator_is_noticed_before_a_word_is_said(
    listening: Listening, authority: Authority, tmp_path: Path
) -> None:
    address = await listening.listen()
    other = Authority.create(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        await Calling().call(address, credential_of(other, "worker").client_context())


async def test_a_worker_that_poses_as_the_coordinator_is_noticed(authority: Authority) -> None:
    worker = credential_of(authority, "worker")
    posing = Listening(authority)
    address = await posing.server.bind(LOOPBACK)
    posing.server.serve(context=worker.server_context())
    calling = Calling()
    await calling.call(address, credential_of(authority, "operator").client_context())
    ended = await soon(calling.ended)
    assert "the peer should be a coordinator, but worker/host7 answers" in str(ended)
    posing.server.close(m.Goodbye())


@pytest.mark.parametrize("says", [b"", b"\x16\x03\x01"])
async def test_a_peer_that_dawdles_is_dropped_in_time(authority: Authority, says: bytes) -> None:
    made = Listening(authority, ConnectionLimiter(patience_s=0.1))
    address = await made.listen()
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(says)
    assert await soon(reader.read()) == b""
    writer.close()
    assert "did not authenticate within 0.1 s" in await soon(made.refused.get())
    assert len(made.door._unproven) == 0
    made.server.close(m.Goodbye())


async def test_a_flood_delays_nobody_that_is_connected(
    listening: Listening, authority: Authority
) -> None:
    """2000 connections that are dropped, and 200 that say nothing, while one goes on talking."""
    address = await listening.listen()
    calling = Calling()
    await calling.call(address, credential_of(authority, "worker").client_context())
    await soon(calling.opened.wait())
    writers = []

    async def knock() -> None:
        try:
            _reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError:
            return
        writers.append(writer)

    async with asyncio.TaskGroup() as knocking, asyncio.timeout(PATIENCE_S):
        for number in range(2200):
            knocking.create_task(knock())
            if number % 50 == 0:
                calling.link.send(m.JobOutput(job="j", rank=0), b"x")
                await soon(calling.received.get())
    assert len(listening.door._unproven) <= connection_limiter.PER_ADDRESS
    assert not calling.link.closing
    for writer in writers:
        writer.transport.abort()
