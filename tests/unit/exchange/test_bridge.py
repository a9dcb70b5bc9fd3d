"""The crossing: training threads on one side, the event loop and its sockets on the other."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dtd.errors import RingBroken
from dtd.exchange.api import all_reduce
from tests.unit.exchange.generation import PATIENCE_S, memory_of


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_reduce_and_gather_from_threads(collectives, size):
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

    ring = collectives(size)
    ring.connect()
    for ends in ring.all(work):
        for step, (array, words, timing) in enumerate(ends):
            assert (array == (1 << size) - 1 + step * size).all()
            assert words == [bytes([rank, step]) for rank in range(size)]
            assert (timing.sent_bytes > 0) == (size > 1)
            assert timing.busy_s >= 0
            assert timing.exposed_s >= 0
    assert ring.agreed == [0] * size


@pytest.mark.parametrize("where", ["wait_up", "wait", "gather"])
def test_a_worker_that_blocks_hears_that_the_ring_has_ended(collectives, where):
    ring = collectives(2)
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
    waiting = ring.pool.submit(work, first)
    if where != "wait_up":
        second.wait_up()
    assert blocks.wait(PATIENCE_S)
    ring.end(0, "a new generation will be formed")
    with pytest.raises(RingBroken, match="a new generation will be formed") as caught:
        waiting.result(PATIENCE_S)
    assert (caught.value.suspect, caught.value.evidence) == ("", "")


def test_a_training_thread_that_gives_up_does_not_let_its_neighbours_wait(collectives):
    ring = collectives(2)
    ring.come_up()
    first, second = ring.collectives
    first.give_up("its state could not be loaded")
    with pytest.raises(RingBroken) as caught:
        second.wait(0)
    assert (caught.value.suspect, caught.value.evidence) == ("worker-0", "reset")
    with pytest.raises(RingBroken, match="could not be loaded"):
        first.wait(0)


def test_a_mistake_of_ours_on_the_loop_ends_the_ring_with_its_words(collectives):
    ring = collectives(2)
    ring.come_up()
    collective = ring.collectives[0]
    collective.open_step(0, [memory_of(np.ones(10))])
    collective.start(0)
    collective.start(0)
    with pytest.raises(RingBroken, match="LocalProtocolError"):
        collective.gather(b"")
