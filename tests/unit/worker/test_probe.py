"""A probe says whether the worker that is meant answers on its data port, and why not."""

from __future__ import annotations

import asyncio

from dtd.net.data_server import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.measure import probe
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
