"""dtd's own ring in one rank: the worker's data port, links, handshake, tags and bridge.

As in the worker, an event loop in one thread moves bytes and the calling thread waits.  A step has
one bucket; opening and closing it counts.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import uvloop

from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.exchange.api import BucketMemory, all_reduce
from dtd.exchange.collective import Bridge, RingCollective
from dtd.job import SyncTable
from dtd.net.data_port.data_server import DataServer
from dtd.net.data_port.resources import Resource
from dtd.strategy.wire_memory import RingMemory, bucket_memory
from dtd.wire import messages as m
from dtd.worker.daemon import DEFAULT_HEARTBEAT_INTERVAL_S
from dtd.worker.main import SWITCH_INTERVAL_S
from scripts.benchrun.ranks import Bucket, layout

SILENCE_S: Final = 120.0
"""Other sides have the processors meanwhile; no rank is to be given up for that."""

T = TypeVar("T")


class RingSide:
    """Implement `AllReduceSide`.

    Args:
        setup: rank, world, host, and whether neighbours can map its memory.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._rank, self._world, self._host = setup["rank"], setup["world"], setup["host"]
        self._lends = setup["lends"]
        self._fd_dir = tempfile.TemporaryDirectory()
        self._memory: BucketMemory
        self._lent: RingMemory | None = None
        self._loop = uvloop.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._server = DataServer(f"rank-{self._rank}", _no_checkpoint)
        self._step = 0

    def listen(self) -> list[Any]:
        address = self._on_loop(self._server.listen(Address(self._host, 0)))
        return [address.host, address.port]

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        roster = tuple(
            m.Member(name=f"rank-{rank}", incarnation=1, host=host, port=port, holds=True)
            for rank, (host, port) in enumerate(addresses)
        )
        assign = m.Assign(
            job="bench",
            generation=1,
            roster_id=1,
            rank=self._rank,
            roster=roster,
            held_generation=0,
            held_step=0,
            secret=bytes.fromhex(secret),
        )
        self._ring = self._on_loop(self._connect(assign))
        self._ring.wait_up()

    async def _connect(self, assign: m.Assign) -> RingCollective:
        ring = RingCollective(
            Bridge(self._loop),
            assign,
            self._server,
            chunk_bytes=SyncTable().chunk_kib * 1024,
            beat_interval_s=DEFAULT_HEARTBEAT_INTERVAL_S,
            silence_s=SILENCE_S,
            agreed=lambda: None,
            fd_dir=Path(self._fd_dir.name),
        )
        ring.endpoint.connect()
        return ring

    def prepare(self, size_bytes: int, dtype: str) -> None:
        elements, kind = layout(size_bytes, dtype)
        if self._lent is not None:
            self._lent.close()
        if self._lends:
            self._lent = RingMemory([(elements, kind)])
            self._bucket, self._memory = Bucket(self._lent.flats[0]), self._lent.memories[0]
        else:
            self._bucket = Bucket(torch.zeros(elements, dtype=kind))
            self._memory = bucket_memory(self._bucket.flat)

    def verify(self) -> None:
        self._bucket.verify(self._rank, self._world, self.all_reduce)

    def barrier(self) -> None:
        self._ring.open_step(self._step, [])
        self._ring.gather(b"")
        self._ring.close_step()
        self._step += 1

    def all_reduce(self) -> None:
        self._ring.open_step(self._step, [self._memory])
        all_reduce(self._ring, 0)
        self._ring.close_step()
        self._step += 1

    def _on_loop(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()


def _no_checkpoint(name: str) -> Resource:
    raise CheckpointError(f"there is no checkpoint {name} here")
