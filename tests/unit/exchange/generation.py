"""One generation over real sockets in this process: its members, and their ends of its links."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dtd.address import Address
from dtd.errors import CheckpointError
from dtd.exchange.api import BucketMemory
from dtd.exchange.collective import Bridge, RingCollective
from dtd.exchange.endpoint import RingEndpoint
from dtd.exchange.schedule.chunks import BucketShape, Operation
from dtd.net.data_port.data_server import DataServer
from dtd.wire import messages as m

PATIENCE_S = 60.0
SECRET = b"s" * 32
GENERATION = 4
ROSTER_ID = 9


def memory_of(array: np.ndarray, operation: Operation = Operation.SUM, **more) -> BucketMemory:
    """An array as the memory of a bucket; `more` are other fields of its shape."""
    combine = np.maximum if operation is Operation.MAXIMUM else np.add

    def add(start, stop, received):
        target = array[start:stop]
        combine(target, np.frombuffer(received, dtype=array.dtype), out=target)

    return BucketMemory(
        view=memoryview(array.view(np.uint8)),
        shape=BucketShape(
            elements=array.size, item_bytes=array.itemsize, operation=operation, **more
        ),
        add=add,
        dtype=str(array.dtype),
    )


def hello_of(rank: int) -> dict:
    """The fields of a member's HELLO."""
    return {"generation": GENERATION, "roster_id": ROSTER_ID, "rank": rank}


def assigns(addresses: Sequence[Address], servers: int = 0) -> list[m.Assign]:
    """Each rank's ASSIGN; the last ranks are parameter servers."""
    roster = tuple(
        m.Member(
            name=f"worker-{rank}",
            incarnation=1,
            host=at.host,
            port=at.port,
            holds=True,
            serves=rank >= len(addresses) - servers,
        )
        for rank, at in enumerate(addresses)
    )
    return [
        m.Assign(
            job="job-1",
            generation=GENERATION,
            roster_id=ROSTER_ID,
            rank=rank,
            roster=roster,
            held_generation=0,
            held_step=0,
            secret=SECRET,
        )
        for rank in range(len(addresses))
    ]


def data_server(name: str) -> DataServer:
    def no_checkpoint(path: str):
        raise CheckpointError(f"{path} is not here")

    return DataServer(name, no_checkpoint)


class Node:
    """One rank on the event loop: data port and endpoint, and what the endpoint reports."""

    def __init__(self, rank: int) -> None:
        self.server = data_server(f"worker-{rank}")
        self.up = asyncio.Event()
        self.broken = asyncio.get_running_loop().create_future()
        self.buckets: asyncio.Queue[int] = asyncio.Queue()
        self.words: asyncio.Queue[list[bytes]] = asyncio.Queue()

    @property
    def star(self):
        return self.endpoint.star

    def ring_up(self) -> None:
        assert not self.up.is_set()
        self.up.set()

    def ring_broken(self, loss) -> None:
        self.broken.set_result((loss.suspect, loss.evidence, loss.reason))

    def bucket_done(self, route, bucket) -> None:
        self.buckets.put_nowait(bucket)

    def gather_done(self, entries) -> None:
        self.words.put_nowait(entries)

    async def done(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.buckets.get()

    async def loss(self) -> tuple[str, str, str]:
        """(suspect, evidence, reason)."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.broken

    async def step(self, number, buckets, word):
        """One step of training: all buckets, then the word."""
        node = self.endpoint.node
        node.open_step(number, tuple(buckets))
        for bucket in range(len(buckets)):
            node.start(bucket)
        assert {await self.done() for _ in buckets} == set(range(len(buckets)))
        node.offer(word)
        async with asyncio.timeout(PATIENCE_S):
            return await self.words.get()


class Ranks:
    """All ranks on one event loop, trainers first."""

    def __init__(self, trainers: int, servers: int = 0, fd_dir=None) -> None:
        self._servers, self._fd_dir = servers, fd_dir
        self.nodes = [Node(rank) for rank in range(trainers + servers)]

    async def listen(
        self, late=None, *, chunk_bytes=64, silence_s=PATIENCE_S, lossless="off"
    ) -> None:
        """Make the endpoints; a rank whose address is in `late` does not listen yet."""
        late = late or {}
        addresses = [
            late.get(rank) or await node.server.listen(Address("127.0.0.1", 0))
            for rank, node in enumerate(self.nodes)
        ]
        for node, assign in zip(self.nodes, assigns(addresses, self._servers), strict=True):
            node.endpoint = RingEndpoint(
                assign,
                node.server,
                chunk_bytes=chunk_bytes,
                beat_interval_s=silence_s / 6,
                silence_s=silence_s,
                listener=node,
                fd_dir=self._fd_dir,
                lossless=lossless,
            )

    async def come_up(self) -> None:
        for node in self.nodes:
            node.endpoint.connect()
        await self.are_up()

    async def are_up(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(node.up.wait() for node in self.nodes))

    def address(self, rank: int) -> Address:
        own = self.nodes[0].endpoint.assign.roster[rank]
        return Address(own.host, own.port)

    def close(self) -> None:
        for node in self.nodes:
            node.endpoint.end("the test is over")
            node.server.close()


class Collectives:
    """All ranks' collectives; their loop runs in one other thread, each rank in one of its own.

    `lossless` is repeated until all ranks have a mode; with a credential, links use TLS.
    """

    def __init__(
        self,
        loop_thread,
        size,
        servers=0,
        *,
        chunk_bytes=64,
        fd_dir=None,
        lossless=("off",),
        credential=None,
    ) -> None:
        self._thread, self._chunk_bytes, self._fd_dir = loop_thread, chunk_bytes, fd_dir
        self._lossless = lossless
        self._server_context = credential and credential.server_context()
        self._client_context = credential and credential.client_context()
        self.agreed = [0] * size
        self.pool = ThreadPoolExecutor(size)
        self.servers, self.collectives = loop_thread.run(self._make(size, servers))

    async def _make(self, size, servers):
        ports = [data_server(f"worker-{rank}") for rank in range(size)]
        here, context = Address("127.0.0.1", 0), self._server_context
        addresses = [await port.listen(here, context=context) for port in ports]
        bridge = Bridge(self._thread.loop)
        return ports, [
            RingCollective(
                bridge,
                assign,
                port,
                chunk_bytes=self._chunk_bytes,
                beat_interval_s=PATIENCE_S / 6,
                silence_s=PATIENCE_S,
                agreed=self._agree(assign.rank),
                context=self._client_context,
                fd_dir=self._fd_dir,
                lossless=self._lossless[assign.rank % len(self._lossless)],
            )
            for assign, port in zip(assigns(addresses, servers), ports, strict=True)
        ]

    def _agree(self, rank):
        def agreed():
            self.agreed[rank] += 1

        return agreed

    def collective(self, rank: int) -> RingCollective:
        return self.collectives[rank]

    def connect(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.collectives)):
            self._thread.call(self.collectives[rank].endpoint.connect)

    def start(self, work):
        """Let every rank's thread do this with its collective; their futures."""
        return [self.pool.submit(work, one) for one in self.collectives]

    def all(self, work):
        return [future.result(PATIENCE_S) for future in self.start(work)]

    def come_up(self) -> None:
        self.connect()
        self.all(RingCollective.wait_up)

    def explain(self, rank: int) -> str:
        return self._thread.call(self.collectives[rank].explain)

    def end(self, rank: int, reason: str) -> None:
        self._thread.call(self.collectives[rank].endpoint.end, reason)

    def close(self) -> None:
        for rank, server in enumerate(self.servers):
            self.end(rank, "the test is over")
            self._thread.call(server.close)
        self.pool.shutdown()
