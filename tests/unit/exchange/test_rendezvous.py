"""The store without a server: what one rank writes, the others read after an exchange."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.errors import ProcessGroupFailed, ProtocolError, RingBroken
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.rendezvous import Rendezvous, _decode, _encode

PATIENCE_S = 30.0


class Ranks:
    """Ranks that each make something with their store."""

    def __init__(self, world_size):
        self.ring = InProcessRing(world_size, timeout_s=PATIENCE_S)
        self.dropped = []

    def run(self, *makes):
        def one(rank):
            collective = self.ring.collective(rank)
            collective.open_step(0, [])
            rendezvous = Rendezvous(makes[rank], self.dropped.append)
            return rendezvous.run(collective.gather, collective.check, collective.on_broken)

        with ThreadPoolExecutor(len(makes)) as pool:
            futures = [pool.submit(one, rank) for rank in range(len(makes))]
        return [future.exception() or future.result() for future in futures]


def test_everybody_reads_what_everybody_has_written():
    def make(rank):
        def with_store(store):
            store.set(f"at/{rank}", f"here {rank}")
            return [store.get(f"at/{one}") for one in range(3)]

        return with_store

    assert Ranks(3).run(*map(make, range(3))) == [[b"here 0", b"here 1", b"here 2"]] * 3


def test_one_may_write_and_others_wait_as_nccl_has_it():
    def writes(store):
        store.set("id", b"\0\1")
        met.wait(PATIENCE_S)  # the others come only when they have read it
        return store.check(["id"])

    def reads(store):
        store.wait(["id"])
        met.wait(PATIENCE_S)
        return store.get("id")

    met = threading.Barrier(3)
    assert Ranks(3).run(writes, reads, reads) == [True, b"\0\1", b"\0\1"]


def test_a_key_that_nobody_writes_ends_the_making_for_all():
    ranks = Ranks(2)
    first, second = ranks.run(lambda store: "made", lambda store: store.get("never"))
    assert isinstance(first, ProcessGroupFailed)
    assert isinstance(second, ProcessGroupFailed)
    assert ranks.dropped == ["made"]


def test_a_rank_that_fails_is_named_to_all():
    def fails(_):
        raise RuntimeError("no route")

    for error in Ranks(2).run(lambda store: store.get("x"), fails):
        assert isinstance(error, ProcessGroupFailed)
        assert str(error) == "rank 1: RuntimeError: no route"


def test_what_is_made_after_the_ring_broke_is_dropped():
    ranks, begun, dropped = Ranks(2), threading.Event(), threading.Event()

    def slow(_):
        ranks.ring.break_ring("rank 1 is lost")
        begun.wait(PATIENCE_S)
        return "late"

    def drop(made):
        ranks.dropped.append(made)
        dropped.set()

    collective = ranks.ring.collective(0)
    collective.open_step(0, [])
    with pytest.raises(RingBroken):
        Rendezvous(slow, drop).run(collective.gather, collective.check, collective.on_broken)
    begun.set()
    assert dropped.wait(PATIENCE_S)
    assert ranks.dropped == ["late"]


def test_nobody_waits_for_a_key_once_the_group_is_made():
    stores = []

    def make(store):
        stores.append(store)
        return True

    assert Ranks(2).run(make, make) == [True, True]
    assert not stores[0].check(["later"])
    with pytest.raises(RuntimeError, match="nothing is exchanged any more"):
        stores[0].get("later")


@pytest.mark.parametrize("cut", [1, 7, 16, 20])
def test_what_was_damaged_is_refused(cut):
    whole = _encode(0, {"key": b"value"}, "why")
    assert _decode(whole) == (0, {"key": b"value"}, "why")
    with pytest.raises(ProtocolError, match="damaged"):
        _decode(whole[:cut])
