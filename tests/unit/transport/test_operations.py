"""Every operation on every transport: the same bytes on all ranks, and what they should be.

Over TCP buckets are sent, or lent where they lie in memory that can be; in one process and in a
process group they are copied.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtd.address import Address
from dtd.core.ring.chunks import BucketShape, Operation, cut
from dtd.errors import CheckpointError, RingBroken
from dtd.lent_memory import HEAD_BYTES, LentMemory
from dtd.net.data_server import DataServer
from dtd.transport.api import BucketMemory, BufferLocation
from dtd.transport.bridge import Bridge, RingCollective
from dtd.transport.in_process import InProcessRing
from dtd.transport.process_group import ProcessGroupCollective, group_of
from dtd.wire import messages as m

PATIENCE_S = 60.0
CHUNK_BYTES = 16 * 1024
SIZES = (0, 1, 7, 1_001, 30_011)
COMBINE = {Operation.MAXIMUM: np.maximum}


def memory_of(array, operation=Operation.SUM, home=None):
    combine = COMBINE.get(operation, np.add)

    def add(start, stop, received):
        target = array[start:stop]
        combine(target, np.frombuffer(received, dtype=array.dtype), out=target)

    return BucketMemory(
        view=memoryview(array.view(np.uint8)),
        item_bytes=array.itemsize,
        add=add,
        dtype=str(array.dtype),
        operation=operation,
        home=home,
    )


def contribution(rank, size, step=0):
    return np.random.default_rng((rank, size, step)).standard_normal(size, dtype=np.float32)


def own_of(size, rank, world_size):
    shape = BucketShape(elements=size, item_bytes=4)
    start, stop = cut(shape, world_size=world_size, chunk_bytes=4).own(rank)
    return slice(start, stop)


# --- the transports ------------------------------------------------------------------------------


class InOneProcess:
    lends = False

    def __init__(self, world_size, loop_thread, letters):
        self.ring = InProcessRing(world_size, chunk_bytes=CHUNK_BYTES, timeout_s=PATIENCE_S)
        self.collectives = [self.ring.collective(rank) for rank in range(world_size)]

    def lending(self, collective):
        """Whether the next step's buckets are lent, where they can be."""
        return True

    def break_ring(self):
        self.ring.break_ring("the test breaks it")

    close = break_ring


class ByGloo(InOneProcess):
    def __init__(self, world_size, loop_thread, letters):
        super().__init__(world_size, loop_thread, letters)
        self.collectives = [
            ProcessGroupCollective(
                ring,
                lambda rank=rank: group_of(
                    "gloo",
                    rank=rank,
                    world_size=world_size,
                    host="127.0.0.1",
                    device="cpu",
                    connect_timeout_s=PATIENCE_S,
                ),
            )
            for rank, ring in enumerate(self.collectives)
        ]


class OverTcp:
    lends = False

    def __init__(self, world_size, loop_thread, letters):
        self._thread, self._letters = loop_thread, letters if self.lends else None
        self.servers, self.collectives = loop_thread.run(self._make(world_size))
        for one in self.collectives:
            loop_thread.call(one.connect)
        with ThreadPoolExecutor(world_size) as pool:
            list(pool.map(lambda one: one.wait_up(), self.collectives))

    async def _make(self, world_size):
        def no_checkpoint(name):
            raise CheckpointError(f"{name} is not here")

        servers = [DataServer(f"worker-{rank}", no_checkpoint) for rank in range(world_size)]
        bound = [await server.listen(Address("127.0.0.1", 0)) for server in servers]
        roster = tuple(
            m.Member(name=f"worker-{rank}", incarnation=1, host=at.host, port=at.port, holds=True)
            for rank, at in enumerate(bound)
        )
        bridge = Bridge(self._thread.loop)
        collectives = [
            RingCollective(
                bridge,
                m.Assign(
                    job="job-1",
                    generation=3,
                    roster_id=9,
                    rank=rank,
                    roster=roster,
                    held_generation=0,
                    held_step=0,
                    secret=b"s" * 32,
                ),
                server,
                chunk_bytes=CHUNK_BYTES,
                beat_interval_s=PATIENCE_S / 6,
                silence_s=PATIENCE_S,
                agreed=lambda: None,
                letters=self._letters,
            )
            for rank, server in enumerate(servers)
        ]
        return servers, collectives

    def lending(self, collective):
        """Whether the next step's buckets are lent, where they can be."""
        return (
            not self.lends
            or collective.world_size == 1
            or collective._endpoint._loans._lending.agreed
        )

    def break_ring(self):
        self._thread.call(self.collectives[0].end, "the test breaks it")

    def close(self):
        for collective, server in zip(self.collectives, self.servers, strict=True):
            self._thread.call(collective.end, "the test is over")
            self._thread.call(server.close)


class ByLending(OverTcp):
    lends = True


TRANSPORTS = [InOneProcess, ByGloo, OverTcp, ByLending]


@pytest.fixture
def transport(loop_thread, tmp_path):
    """Makes a transport of some kind for a world; all are closed in the end."""
    letters = tmp_path / "letters"
    letters.mkdir(mode=0o700)
    made = []

    def make(kind, world_size):
        made.append(kind(world_size, loop_thread, letters))
        return made[-1]

    yield make
    for one in made:
        one.close()


def on_all(transport, work):
    """What `work` returns for each rank's collective, each in a thread of its own."""
    with ThreadPoolExecutor(len(transport.collectives)) as pool:
        futures = [pool.submit(work, one) for one in transport.collectives]
        return [future.result(PATIENCE_S) for future in futures]


class Arrays:
    """A rank's buckets: in memory that may be lent, if the transport lends."""

    def __init__(self, transport, sizes):
        self._lent = LentMemory(sum(4 * size + 64 for size in sizes)) if transport.lends else None
        self.arrays, self._homes, offset = [], [], HEAD_BYTES
        for size in sizes:
            if self._lent is None:
                self.arrays.append(np.zeros(size, np.float32))
                self._homes.append(None)
            else:
                view = self._lent.view(offset, 4 * size)
                self.arrays.append(np.frombuffer(view, np.float32))
                self._homes.append(BufferLocation(self._lent, offset))
                offset += -(-4 * size // 64) * 64 if size else 0

    def fill(self, values):
        if self._lent is not None:
            self._lent.recall()
        for array, value in zip(self.arrays, values, strict=True):
            array[:] = value

    def memories(self, operations):
        return [
            memory_of(array, operation, home)
            for array, operation, home in zip(self.arrays, operations, self._homes, strict=True)
        ]


# --- the tests -----------------------------------------------------------------------------------

MOST_STEPS = 10_000
WORLDS = [
    *((InOneProcess, size) for size in range(1, 9)),
    *((ByGloo, size) for size in (2, 3, 5)),
    *((OverTcp, size) for size in (1, 2, 3, 8)),
    *((ByLending, size) for size in (2, 3, 8)),
]


@pytest.mark.parametrize(("kind", "world_size"), WORLDS)
def test_all_operations_side_by_side(transport, kind, world_size):
    """The last step lends, if the transport does: until then there are others."""
    operations = [operation for operation in Operation for _ in SIZES]
    sizes = SIZES * len(Operation)
    made = transport(kind, world_size)

    def work(collective):
        arrays = Arrays(made, sizes)
        step, lends = -1, False
        while not lends:
            step, lends = step + 1, made.lending(collective)
            assert step < MOST_STEPS
            arrays.fill(contribution(collective.rank, size, step) for size in sizes)
            collective.open_step(step, arrays.memories(operations))
            for bucket in reversed(range(len(sizes))):
                collective.start(bucket)
            for bucket in range(len(sizes)):
                collective.wait(bucket)
            lends = all(word == b"yes" for word in collective.gather(b"yes" if lends else b"no"))
            collective.close_step()
        return step, [array.copy() for array in arrays.arrays]

    results = on_all(made, work)
    for at, (operation, size) in enumerate(zip(operations, sizes, strict=True)):
        given = [contribution(rank, size, results[0][0]) for rank in range(world_size)]
        check(operation, given, [arrays[at] for _, arrays in results])


def check(operation, given, results):
    """What all ranks hold of one bucket, given what each contributed."""
    size, world_size = len(given[0]), len(given)
    owns = [own_of(size, rank, world_size) for rank in range(world_size)]
    if operation is Operation.REDUCE_SCATTER:
        right = np.sum(given, axis=0)
        for own, result in zip(owns, results, strict=True):
            np.testing.assert_allclose(result[own], right[own], rtol=1e-4, atol=1e-5)
        return
    assert len({result.tobytes() for result in results}) == 1
    if operation is Operation.SUM:
        np.testing.assert_allclose(results[0], np.sum(given, axis=0), rtol=1e-4, atol=1e-5)
    elif operation is Operation.MAXIMUM:
        assert np.array_equal(results[0], np.max(given, axis=0))
    else:
        right = np.zeros(size, np.float32)
        for own, one in zip(owns, given, strict=True):
            right[own] = one[own]
        assert np.array_equal(results[0], right)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_an_owner_changes_its_segment_between_the_halves(transport, kind, world_size):
    """A sharded update: the second half is added when the first has come back."""
    size, made = 30_011, transport(kind, world_size)

    def work(collective):
        (array,) = (arrays := Arrays(made, [size])).arrays
        arrays.fill([contribution(collective.rank, size)])
        collective.open_step(0, arrays.memories([Operation.REDUCE_SCATTER]), 2)
        collective.start(0)
        collective.wait(0)
        array[own_of(size, collective.rank, world_size)] *= 2
        extra = np.array([float(collective.rank)], np.float32)
        collective.add([memory_of(array, Operation.ALL_GATHER)])
        collective.add([memory_of(extra, Operation.MAXIMUM)])
        for bucket in (2, 1):
            collective.start(bucket)
        for bucket in (1, 2):
            collective.wait(bucket)
        collective.close_step()
        return array.copy(), float(extra[0])

    results = on_all(made, work)
    right = 2 * np.sum([contribution(rank, size) for rank in range(world_size)], axis=0)
    assert len({array.tobytes() for array, _ in results}) == 1
    np.testing.assert_allclose(results[0][0], right, rtol=1e-4, atol=1e-4)
    assert {extra for _, extra in results} == {world_size - 1}


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_what_a_broken_ring_left_is_done_again_by_another(transport, kind):
    """The last rank never starts; the same contributions then give the same bytes as without."""
    operations = [Operation.SUM, Operation.REDUCE_SCATTER, Operation.MAXIMUM]
    sizes = [30_011, 1_001, 7]

    def step(made, collective, arrays, *, breaks=False):
        arrays.fill(contribution(collective.rank, size) for size in sizes)
        collective.open_step(0, arrays.memories(operations))
        if breaks and collective.rank == 2:
            made.break_ring()
        for bucket in range(len(sizes)):
            collective.start(bucket)
        for bucket in range(len(sizes)):
            collective.wait(bucket)
        return [array.copy() for array in arrays.arrays]

    broken, whole, again = (transport(kind, 3) for _ in range(3))
    kept = [Arrays(broken, sizes) for _ in range(3)]

    def fails(collective):
        with pytest.raises(RingBroken):
            step(broken, collective, kept[collective.rank], breaks=True)

    on_all(broken, fails)
    redone = on_all(again, lambda one: step(again, one, kept[one.rank]))
    straight = on_all(whole, lambda one: step(whole, one, Arrays(whole, sizes)))
    for one, other in zip(redone, straight, strict=True):
        assert [array.tobytes() for array in one] == [array.tobytes() for array in other]
