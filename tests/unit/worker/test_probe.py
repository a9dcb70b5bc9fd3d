"""A probe says whether the worker that is meant answers on its data port, and why not."""

from __future__ import annotations

import asyncio

from dtd.address import Address
from dtd.net.data_port.resources import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.worker.measure.links import PROBE_BYTES, probe
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
    return await asyncio.to_thread(probe, message, by="worker-0", timeout_s=timeout_s)


async def test_another_worker_on_that_port_is_not_the_one(data_port):
    _, address = data_port
    answer = await probed(address, name="worker-2")
    assert answer == m.Probed(
        name="worker-2", reachable=False, reason="worker-1 answers, not worker-2"
    )


class NarrowPath:
    """Carries so many bytes from the worker to whoever calls it, and then no more, for ever."""

    def __init__(self, target: Address, most_bytes: int) -> None:
        self._target = target
        self._most_bytes = most_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Address:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return Address(*self._server.sockets[0].getsockname())

    async def __aexit__(self, *_failure: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers += [back, there]
        for source, sink, most in ((near, there, 1 << 40), (far, back, self._most_bytes)):
            task = asyncio.create_task(self._copy(source, sink, most))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, most_bytes: int
    ) -> None:
        while most_bytes > 0 and (data := await source.read(min(4096, most_bytes))):
            sink.write(data)
            most_bytes -= len(data)


async def test_a_path_that_loses_what_is_large_is_no_path(data_port, monkeypatch):
    _, address = data_port
    async with NarrowPath(address, 2 * PROBE_BYTES) as wide:
        assert (await probed(wide)).reachable
    monkeypatch.setattr("dtd.worker.measure.links.MOST_S", 0.2)
    async with NarrowPath(address, PROBE_BYTES) as narrow:
        answer = await probed(narrow)
    assert (answer.reachable, answer.greeted) == (False, True)
    assert "it answers, but 256 KiB do not arrive" in answer.reason
