"""A probe says whether the worker that is meant answers on its data port, and why not."""

from __future__ import annotations

import asyncio

from dtd.address import Address
from dtd.net.data_server import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.measure import MAX_PROBES, Probes, probe
from tests.unit.worker.conftest import WORKER_SECRET

PATIENCE_S = 60.0
NEVER_S = 1 << 40
KEY = ticket_key(WORKER_SECRET, PROBE_SCOPE, NEVER_S)


async def probed(address, *, name="worker-1", timeout_s=PATIENCE_S):
    message = m.Probe(
        name=name,
        host=address.host,
        port=address.port,
        ticket_expires_s=NEVER_S,
        ticket_key=KEY,
    )
    return await probe(message, by="worker-0", timeout_s=timeout_s)


async def test_a_worker_that_answers_is_reachable(data_port):
    server, address = data_port
    assert await probed(address) == m.Probed(name="worker-1", reachable=True, greeted=True)
    [link] = server._server.links()
    async with asyncio.timeout(PATIENCE_S):
        while not link.closing:
            assert (await probed(address)).reachable
    assert link._error is None


async def test_a_path_that_is_too_slow_is_no_path(data_port, monkeypatch):
    _, address = data_port
    monkeypatch.setattr("dtd.worker.measure.MOST_S", -1.0)
    assert not (await probed(address)).reachable


async def test_another_worker_on_that_port_is_not_the_one(data_port):
    _, address = data_port
    answer = await probed(address, name="worker-2")
    assert answer == m.Probed(name="worker-2", reachable=False, reason="worker-1 answers there")


async def test_nobody_listens(free_address):
    answer = await probed(free_address)
    assert not answer.reachable
    assert "onnect" in answer.reason


async def test_who_hangs_up_is_not_reachable():
    def hang_up(reader, writer):
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        answer = await probed(Address(*server.sockets[0].getsockname()))
    assert not answer.reachable
    assert "lost" in answer.reason


async def test_who_speaks_something_else_is_not_reachable(server):
    server.refuses = True
    server.welcome = b"HTTP/1.1 400 Bad Request"
    answer = await probed(server.address)
    assert not answer.reachable
    assert answer.reason == "the handshake failed: BAD_MAGIC"


async def test_who_refuses_is_not_reachable(server, refusal):
    server.refuses = True
    server.welcome = refusal
    answer = await probed(server.address)
    assert not answer.reachable
    assert answer.reason == "the handshake failed: REFUSED"  # whoever it is that listens there


async def test_a_name_that_does_not_resolve_is_not_reachable():
    answer = await probed(Address("no-such-host.invalid", 1))
    assert not answer.reachable
    assert answer.reason


async def test_only_a_few_are_under_way_at_once(data_port):
    _, address = data_port
    answers = asyncio.Queue()
    probes = Probes("worker-0", lambda *answered: answers.put_nowait(answered))
    asked = [
        m.Probe(name=f"worker-{number}", host=address.host, port=address.port, ticket_key=KEY)
        for number in range(MAX_PROBES + 1)
    ]
    for message in asked:
        probes.begin(message, timeout_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        answered = [await answers.get() for _ in range(MAX_PROBES)]
    assert {message.name for message, _ in answered} == {one.name for one in asked[:MAX_PROBES]}
    assert all(probed.name == message.name for message, probed in answered)
