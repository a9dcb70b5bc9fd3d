"""Every operation on every transport: the same bytes on all ranks, and what they should be.

Over TCP buckets are sent, or lent where they lie in memory that can be; in one process and in a
process group they are copied.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dtd.errors import RingBroken
from dtd.exchange.api import BufferLocation
from dtd.exchange.group_backends import group_of
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.process_group import ProcessGroupCollective
from dtd.exchange.schedule.chunks import BucketShape, Operation, cut
from dtd.host.shared_memory import HEAD_BYTES, OfferedMemory
from tests.shards import held_segments
from tests.unit.exchange.generation import PATIENCE_S, Collectives, memory_of

CHUNK_BYTES = 16 * 1024
SIZES = (0, 1, 7, 1_001, 30_011)


@dataclass(frozen=True)
class Kind:
    """An operation and its parameters."""

    operation: Operation
    copies: int = 0
    hops: int | None = None
    bounds: tuple[int, ...] = ()


SUM, MAXIMUM, SCATTER, GATHER = map(Kind, Operation)
KINDS = [
    SUM,
    MAXIMUM,
    SCATTER,
    Kind(Operation.REDUCE_SCATTER, copies=1),
    Kind(Operation.REDUCE_SCATTER, copies=7),
    GATHER,
    Kind(Operation.ALL_GATHER, copies=1),
    Kind(Operation.ALL_GATHER, copies=7),
    Kind(Operation.ALL_GATHER, hops=1),
]


def contribution(rank, size, step=0):
    return np.random.default_rng((rank, size, step)).standard_normal(size, dtype=np.float32)


def segments_of(size, world_size):
    """The slice of each segment."""
    segments = cut(BucketShape(elements=size, item_bytes=4), world_size=world_size, chunk_bytes=4)
    return [slice(*segments.segment(index)) for index in range(world_size)]


def held_of(size, rank, world_size, mirrors):
    """The slices that a rank holds: its own one first, then those of the ranks before it."""
    segments = segments_of(size, world_size)
    return [segments[index] for index in held_segments(rank, world_size, mirrors)]


def given_by(rank, size, world_size, kind, step=0):
    """A rank's memory before an operation; an all-gather finds copies of others' segments."""
    own = contribution(rank, size, step)
    if kind.operation is Operation.ALL_GATHER:
        for distance, held in enumerate(held_of(size, rank, world_size, kind.copies)):
            own[held] = contribution((rank - distance) % world_size, size, step)[held]
    return own


# --- the transports ------------------------------------------------------------------------------


class InOneProcess:
    lends = False

    def __init__(self, world_size, loop_thread, fd_dir):
        self.ring = InProcessRing(world_size, chunk_bytes=CHUNK_BYTES, timeout_s=PATIENCE_S)
        self.collectives = [self.ring.collective(rank) for rank in range(world_size)]

    def lending(self, collective):
        """Whether the next step's buckets are lent, where they can be."""
        return True

    def break_ring(self):
        self.ring.break_ring("the test breaks it")

    close = break_ring


class ByGloo(InOneProcess):
    def __init__(self, world_size, loop_thread, fd_dir):
        super().__init__(world_size, loop_thread, fd_dir)
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

    def __init__(self, world_size, loop_thread, fd_dir):
        self._made = Collectives(
            loop_thread,
            world_size,
            chunk_bytes=CHUNK_BYTES,
            fd_dir=fd_dir if self.lends else None,
        )
        self.collectives, self.close = self._made.collectives, self._made.close
        self._made.come_up()

    def lending(self, collective):
        """Whether the next step's buckets are lent, where they can be."""
        return (
            not self.lends or collective.world_size == 1 or collective.endpoint._shared._is_mapped
        )

    def break_ring(self):
        self._made.end(0, "the test breaks it")


class ByLending(OverTcp):
    lends = True


TRANSPORTS = [InOneProcess, ByGloo, OverTcp, ByLending]


@pytest.fixture
def transport(loop_thread, tmp_path):
    """Makes a transport of some kind for a world; all are closed in the end."""
    fd_dir = tmp_path / "fd_dir"
    fd_dir.mkdir(mode=0o700)
    made = []

    def make(kind, world_size):
        made.append(kind(world_size, loop_thread, fd_dir))
        return made[-1]

    yield make
    for one in made:
        one.close()


def on_all(transport, work):
    """The results of `work` for each rank's collective, each in a thread of its own."""
    with ThreadPoolExecutor(len(transport.collectives)) as pool:
        futures = [pool.submit(work, one) for one in transport.collectives]
        return [future.result(PATIENCE_S) for future in futures]


class Arrays:
    """A rank's buckets: in memory that may be lent, if the transport lends."""

    def __init__(self, transport, sizes):
        self._lent = (
            OfferedMemory(sum(4 * size + 64 for size in sizes)) if transport.lends else None
        )
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
            self._lent.revoke()
        for array, value in zip(self.arrays, values, strict=True):
            array[:] = value

    def memories(self, kinds):
        return [
            replace(memory_of(array, **vars(kind)), home=home)
            for array, kind, home in zip(self.arrays, kinds, self._homes, strict=True)
        ]


# --- the tests -----------------------------------------------------------------------------------

MOST_STEPS = 10_000
WORLDS = [
    *((InOneProcess, size) for size in (1, 3, 8)),
    (ByGloo, 3),
    *((OverTcp, size) for size in (2, 5)),
    *((ByLending, size) for size in (2, 5)),
]


@pytest.mark.parametrize(("kind", "world_size"), WORLDS)
def test_all_operations_side_by_side(transport, kind, world_size):
    """The last step lends, if the transport does: until then there are others."""
    kinds = [kind for kind in KINDS for _ in SIZES]
    sizes = SIZES * len(KINDS)
    made = transport(kind, world_size)

    def work(collective):
        arrays = Arrays(made, sizes)
        step, lends = -1, False
        while not lends:
            step, lends = step + 1, made.lending(collective)
            assert step < MOST_STEPS
            arrays.fill(
                given_by(collective.rank, size, world_size, one, step)
                for size, one in zip(sizes, kinds, strict=True)
            )
            collective.open_step(step, arrays.memories(kinds))
            for bucket in reversed(range(len(sizes))):
                collective.start(bucket)
            for bucket in range(len(sizes)):
                collective.wait(bucket)
            lends = all(word == b"yes" for word in collective.gather(b"yes" if lends else b"no"))
            collective.close_step()
        return step, [array.copy() for array in arrays.arrays]

    results = on_all(made, work)
    step = results[0][0]
    for at, (one, size) in enumerate(zip(kinds, sizes, strict=True)):
        given = [given_by(rank, size, world_size, one, step) for rank in range(world_size)]
        check(one, given, [arrays[at] for _, arrays in results])


def check(kind, given, results):
    """All ranks' content of one bucket, given their contributions."""
    size, world_size = len(given[0]), len(given)
    if kind.operation is Operation.ALL_GATHER:
        check_gathered(kind, given, results)
        return
    if kind.operation is Operation.MAXIMUM:
        assert all(np.array_equal(result, np.max(given, axis=0)) for result in results)
        return
    right = np.sum(given, axis=0)
    mirrors = kind.copies if kind.operation is Operation.REDUCE_SCATTER else world_size
    for rank, result in enumerate(results):
        for distance, held in enumerate(held_of(size, rank, world_size, mirrors)):
            np.testing.assert_allclose(result[held], right[held], rtol=1e-4, atol=1e-5)
            assert np.array_equal(result[held], results[rank - distance][held])


def check_gathered(kind, given, results):
    """Every rank has the segments of as many ranks before it; the rest is as it was."""
    size, world_size = len(given[0]), len(given)
    furthest = max(world_size if kind.hops is None else kind.hops, kind.copies)
    for rank, result in enumerate(results):
        right = given[rank].copy()
        for distance, held in enumerate(held_of(size, rank, world_size, furthest)):
            right[held] = given[rank - distance][held]
        assert np.array_equal(result, right)


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_what_a_broken_ring_left_is_done_again_by_another(transport, kind):
    """The last rank never starts; the same contributions then give the same bytes as without."""
    kinds = [SUM, Kind(Operation.REDUCE_SCATTER, copies=1), MAXIMUM]
    sizes = [30_011, 1_001, 7]

    def step(made, collective, arrays, *, breaks=False):
        arrays.fill(contribution(collective.rank, size) for size in sizes)
        collective.open_step(0, arrays.memories(kinds))
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
