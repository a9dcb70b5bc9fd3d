"""Paths on which a probe waits in vain; how long it waits is played."""

from __future__ import annotations

import asyncio
import socket

from dtd.address import Address
from dtd.wire import messages as m
from dtd.worker.measure import PROBE_BYTES
from tests.unit.worker.test_probe import probed


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


async def test_a_path_that_loses_what_is_large_is_no_path(data_port):
    _, address = data_port
    async with NarrowPath(address, PROBE_BYTES) as narrow:
        answer = await probed(narrow, timeout_s=5.0)
    assert (answer.reachable, answer.greeted) == (False, True)
    assert "it answers, but 256 KiB do not arrive: no answer within 5 s" in answer.reason
    async with NarrowPath(address, 2 * PROBE_BYTES) as wide:
        assert (await probed(wide)).reachable


async def test_a_worker_that_accepts_and_says_nothing_is_not_reachable():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        answer = await probed(Address(*mute.getsockname()), timeout_s=5.0)
    assert answer == m.Probed(name="worker-1", reachable=False, reason="no answer within 5 s")
