"""The files that a gradient's bytes pass, traced in a real step over real sockets."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dtd
from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.exchange.collective import Bridge, RingCollective
from dtd.net.data_port.data_server import DataServer
from dtd.wire import messages as m

PATIENCE_S = 60.0
TRACED_STEP = 4
PACKAGE = Path(dtd.__file__).parent
PAGE = PACKAGE.parent / "docs" / "how-a-step-flows.md"


def no_checkpoint(name):
    raise CheckpointError(f"{name} is not here")


class TcpRing:
    """A generation's ring over TCP, on an event loop in a thread of its own."""

    def __init__(self, world_size: int, **settings: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._servers = [DataServer(f"worker-{rank}", no_checkpoint) for rank in range(world_size)]
        self._ranks = self.call(self._connect(**settings))
        for rank in self._ranks:
            rank.wait_up()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def collective(self, rank: int) -> RingCollective:
        return self._ranks[rank]

    async def _connect(
        self, *, generation: int, first_step: int, chunk_bytes: int, **_: Any
    ) -> list[RingCollective]:
        ports = [(await server.listen(Address("127.0.0.1", 0))).port for server in self._servers]
        roster = tuple(
            m.Member(name=f"worker-{rank}", incarnation=1, host="127.0.0.1", port=port, holds=True)
            for rank, port in enumerate(ports)
        )
        ranks = []
        for rank, server in enumerate(self._servers):
            assign = m.Assign(
                job="job",
                generation=generation,
                roster_id=9,
                rank=rank,
                roster=roster,
                held_generation=0,
                held_step=first_step,
                secret=b"s" * 32,
            )
            settings = {"beat_interval_s": PATIENCE_S / 6, "silence_s": PATIENCE_S}
            ranks.append(
                RingCollective(
                    Bridge(self.loop), assign, server, chunk_bytes=chunk_bytes, **settings
                )
            )
        for one in ranks:
            one.endpoint.connect()
        return ranks

    async def _end(self, reason: str) -> None:
        for rank, server in zip(self._ranks, self._servers, strict=True):
            rank.endpoint.end(reason)
            server.close()

    def break_ring(self, reason: str) -> None:
        self.call(self._end(reason))

    def close(self) -> None:
        self.break_ring("the test is over")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class Trace:
    """The files of dtd whose functions hold memory of the buckets, in two threads.

    Args:
        ring: has the event loop that is traced together with the calling thread.
        buckets: the memory.
    """

    def __init__(self, ring: TcpRing, buckets: list[torch.Tensor]) -> None:
        self.files: set[str] = set()
        self._ring = ring
        self._ranges = [
            range(flat.data_ptr(), flat.data_ptr() + max(1, flat.nbytes)) for flat in buckets
        ]

    def begin(self) -> None:
        self._ring.call(self._profile_loop(self._note))
        sys.setprofile(self._note)

    def end(self) -> None:
        sys.setprofile(None)
        self._ring.call(self._profile_loop(None))

    async def _profile_loop(self, function: Any) -> None:
        sys.setprofile(function)

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event not in {"call", "return"} or not file.is_relative_to(PACKAGE):
            return
        if any(map(self._is_bucket, list(frame.f_locals.values()))):
            self.files.add(str(file.relative_to(PACKAGE.parent)))

    def _is_bucket(self, value: object) -> bool:
        if isinstance(value, list | tuple):
            return any(map(self._is_bucket, value))
        if isinstance(value, torch.nn.Parameter):
            return self._is_bucket(value.grad)
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
        elif isinstance(value, np.ndarray):
            address = value.ctypes.data
        elif isinstance(value, memoryview) and value.nbytes:
            address = np.frombuffer(value, dtype=np.uint8).ctypes.data
        else:
            return False
        return any(address in memory for memory in self._ranges)


@pytest.fixture
def rings(arena):
    """The rings that the arena makes, of real sockets; they are closed in the end."""
    made: list[TcpRing] = []

    def make(world_size, **settings):
        made.append(TcpRing(world_size, **settings))
        return made[-1]

    arena.ring = make
    yield made
    for ring in made:
        ring.close()


def test_a_gradient_passes_the_files_that_the_page_names(arena, rings, regression, monkeypatch):
    ranks = [arena.start(regression(), arena.spec(), name=f"w{rank}") for rank in range(2)]
    built = [rank.run._built for rank in ranks]
    flats = [flat for one in built for part in one.strategy._updates for flat in part.buckets.flats]
    replica, strategy = built[0].replica, built[0].strategy
    compute, apply = strategy.compute, strategy.apply
    traces: list[Trace] = []

    def compute_traced(*arguments):
        if replica.step == TRACED_STEP:
            traces.append(Trace(rings[0], flats))
            traces[0].begin()
        compute(*arguments)

    def apply_traced(computation):
        applied = apply(computation)
        if replica.step == TRACED_STEP:
            traces[0].end()
        return applied

    monkeypatch.setattr(strategy, "compute", compute_traced)
    monkeypatch.setattr(strategy, "apply", apply_traced)
    arena.generation(ranks)
    assert [rank.error for rank in ranks] == [None, None]
    table = PAGE.read_text().partition("### The path of a gradient, file by file")[2]
    named = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \|", table.partition("###")[0], re.MULTILINE)
    assert len(named) <= 10
    assert traces[0].files == set(named)
