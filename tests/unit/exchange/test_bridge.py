"""The crossing: training threads on one side, the event loop and its sockets on the other."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dtd.address import Address
from dtd.errors import CheckpointError, RingBroken
from dtd.exchange.api import BucketMemory, all_reduce
from dtd.exchange.collective import Bridge, RingCollective
from dtd.net.data_server import DataServer
from dtd.wire import messages as m

GENERATION = 3
PATIENCE_S = 30.0


def memory_of(array):
    def add(start, stop, received):
        array[start:stop] += np.frombuffer(received, dtype=array.dtype)

    return BucketMemory(view=memoryview(array.view(np.uint8)), item_bytes=array.itemsize, add=add)


class Rings:
    """The collectives of all ranks; their loop runs in one other thread, they in one each."""

    def __init__(self, loop_thread, size):
        self._loop_thread = loop_thread
        self.agreed = [0] * size
        self.servers, self.collectives = loop_thread.run(self._make(size))
        self._pool = ThreadPoolExecutor(size)

    async def _make(self, size):
        def no_checkpoint(name):
            raise CheckpointError(f"{name} is not here")

        servers = [DataServer(f"worker-{rank}", no_checkpoint) for rank in range(size)]
        bound = [await server.listen(Address("127.0.0.1", 0)) for server in servers]
        roster = tuple(
            m.Member(name=f"worker-{rank}", incarnation=1, host=at.host, port=at.port, holds=True)
            for rank, at in enumerate(bound)
        )
        bridge = Bridge(self._loop_thread.loop)
        collectives = [
            RingCollective(
                bridge,
                self._assign(rank, roster),
                server,
                chunk_bytes=64,
                beat_interval_s=PATIENCE_S / 6,
                silence_s=PATIENCE_S,
                agreed=self._agree(rank),
            )
            for rank, server in enumerate(servers)
        ]
        return servers, collectives

    def _agree(self, rank):
        def agreed():
            self.agreed[rank] += 1

        return agreed

    def _assign(self, rank, roster):
        return m.Assign(
            job="job-1",
            generation=GENERATION,
            roster_id=9,
            rank=rank,
            roster=roster,
            held_generation=0,
            held_step=0,
            secret=b"s" * 32,
        )

    def connect(self, *ranks):
        for rank in ranks or range(len(self.collectives)):
            self.call(self.collectives[rank].endpoint.connect)

    def call(self, function, *arguments):
        return self._loop_thread.call(function, *arguments)

    def start(self, work):
        """Let every rank's thread do this with its collective; their futures."""
        return [self._pool.submit(work, collective) for collective in self.collectives]

    def all(self, work):
        return [future.result(PATIENCE_S) for future in self.start(work)]

    def end(self, rank, reason):
        self._loop_thread.call(self.collectives[rank].endpoint.end, reason)

    def close(self):
        for rank, server in enumerate(self.servers):
            self.end(rank, "the test is over")
            self._loop_thread.call(server.close)
        self._pool.shutdown()


@pytest.fixture
def rings(loop_thread):
    made = []

    def make(size):
        made.append(Rings(loop_thread, size))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_up(collective):
    collective.wait_up()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_reduce_and_gather_from_threads(rings, size):
    def work(collective):
        collective.wait_up()
        ends = []
        for step in range(4):
            array = np.full(1000, (1 << collective.rank) + step, dtype=np.int64)
            collective.open_step(step, [memory_of(array)])
            all_reduce(collective, 0)
            words = collective.gather(bytes([collective.rank, step]))
            timing = collective.close_step()
            ends.append((array, words, timing))
        return ends

    ring = rings(size)
    ring.connect()
    for ends in ring.all(work):
        for step, (array, words, timing) in enumerate(ends):
            assert (array == (1 << size) - 1 + step * size).all()
            assert words == [bytes([rank, step]) for rank in range(size)]
            assert (timing.sent_bytes > 0) == (size > 1)
            assert timing.busy_s >= 0
            assert timing.exposed_s >= 0
    assert ring.agreed == [0] * size


def test_an_agreement_is_told_once(rings):
    def work(collective):
        collective.wait_up()
        collective.open_step(0, [])
        collective.gather(b"digest")
        before = ring.agreed[collective.rank]
        collective.agreed()
        collective.agreed()
        return before

    ring = rings(2)
    ring.connect()
    assert ring.all(work) == [0, 0]
    assert ring.agreed == [1, 1]


def test_a_bucket_is_averaged_while_the_thread_does_something_else(rings):
    go_on = threading.Barrier(2)

    def work(collective):
        collective.wait_up()
        arrays = [np.ones(500), np.ones(3)]
        collective.open_step(0, [memory_of(array) for array in arrays])
        collective.start(1)
        collective.start(0)
        go_on.wait(PATIENCE_S)
        collective.wait(0)
        collective.wait(1)
        collective.wait(0)
        return arrays

    ring = rings(2)
    ring.connect()
    for arrays in ring.all(work):
        assert all((array == 2).all() for array in arrays)


@pytest.mark.parametrize("where", ["wait_up", "wait", "gather"])
def test_a_worker_that_blocks_hears_that_the_ring_has_ended(rings, where):
    ring = rings(2)
    first, second = ring.collectives
    blocks = threading.Event()

    def work(collective):
        if where != "wait_up":
            collective.wait_up()
            collective.open_step(0, [memory_of(np.ones(10))])
        blocks.set()
        if where == "wait_up":
            collective.wait_up()
        elif where == "wait":
            collective.start(0)
            collective.wait(0)
        else:
            collective.gather(b"word")

    ring.connect(*([0] if where == "wait_up" else [0, 1]))
    waiting = ring._pool.submit(work, first)
    if where != "wait_up":
        second.wait_up()
    assert blocks.wait(PATIENCE_S)
    ring.end(0, "a new generation will be formed")
    with pytest.raises(RingBroken, match="a new generation will be formed") as caught:
        waiting.result(PATIENCE_S)
    assert (caught.value.suspect, caught.value.evidence) == ("", "")


def test_it_says_since_when_the_training_thread_waits(rings):
    ring = rings(2)
    first, second = ring.collectives
    assert first.waiting_since is None
    begun_s = time.monotonic()
    waiting = ring._pool.submit(wait_up, first)
    while first.waiting_since is None:
        threading.Event().wait(0)
    assert begun_s <= first.waiting_since <= time.monotonic()
    ring.connect()
    waiting.result(PATIENCE_S)
    second.wait_up()
    assert first.waiting_since is None


def test_any_thread_may_start_what_depends_on_a_result_when_that_is_here(rings):
    """The training thread waits for the second bucket before anybody has handed it over."""

    def work(collective):
        collective.wait_up()
        first = np.full(50, 1 + collective.rank, dtype=np.int64)
        second = np.zeros(5, dtype=np.int64)
        ready = threading.Event()

        def follow():
            assert ready.wait(PATIENCE_S)
            second[:] = first[0]
            collective.start(1)

        helper = threading.Thread(target=follow)
        helper.start()
        for step in range(2):
            collective.open_step(step, [memory_of(first), memory_of(second)] if step == 0 else [])
            if step == 0:
                collective.start(0, ready.set)
                collective.wait(1)
                helper.join()
            collective.gather(b"")
        return second[0]

    ring = rings(3)
    ring.connect()
    assert ring.all(work) == [3 * (1 + 2 + 3)] * 3


def test_a_worker_that_asked_for_it_hears_that_the_ring_has_broken(rings):
    ring = rings(2)
    ring.connect()
    ring.all(wait_up)
    heard, on_loop = threading.Event(), []
    collective = ring.collectives[0]

    def hear():
        on_loop.append(threading.get_ident())
        heard.set()

    collective.on_broken(hear)
    ring.end(1, "it dies")
    assert heard.wait(PATIENCE_S)
    assert on_loop == [ring.call(threading.get_ident)]
    assert (collective.suspect, collective.evidence) == ("worker-1", "reset")
    collective.on_broken(hear)
    assert on_loop[1:] == [threading.get_ident()]


def test_a_neighbours_death_names_the_suspect(rings):
    ring = rings(2)
    ring.connect()
    ring.all(wait_up)
    ring.end(1, "it dies")

    def work(collective):
        collective.open_step(0, [memory_of(np.ones(10))])
        collective.start(0)
        collective.wait(0)

    first, second = ring.start(work)
    with pytest.raises(RingBroken) as caught:
        first.result(PATIENCE_S)
    assert (caught.value.suspect, caught.value.evidence) == ("worker-1", "reset")
    with pytest.raises(RingBroken) as caught:
        second.result(PATIENCE_S)
    assert (caught.value.suspect, caught.value.evidence) == ("", "")


def test_a_training_thread_that_gives_up_does_not_let_its_neighbours_wait(rings):
    ring = rings(2)
    ring.connect()
    ring.all(wait_up)
    first, second = ring.collectives
    first.give_up("its state could not be loaded")
    with pytest.raises(RingBroken) as caught:
        second.wait(0)
    assert (caught.value.suspect, caught.value.evidence) == ("worker-0", "reset")
    with pytest.raises(RingBroken, match="could not be loaded"):
        first.wait(0)


def test_a_mistake_of_ours_on_the_loop_ends_the_ring_with_its_words(rings):
    ring = rings(2)
    ring.connect()
    ring.all(wait_up)
    collective = ring.collectives[0]
    collective.open_step(0, [memory_of(np.ones(10))])
    collective.start(0)
    collective.start(0)
    with pytest.raises(RingBroken, match="LocalProtocolError"):
        collective.gather(b"")
