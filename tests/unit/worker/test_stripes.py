"""Ranges that several threads fetch: each is taken once, lost ones come back, cuts are final."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dtd.errors import DtdError, ProtocolError
from dtd.worker.range_scheduler import RANGE_BYTES, Range, RangeScheduler

PATIENCE_S = 30.0


class Cut:
    """A link that remembers whether it was cut."""

    def __init__(self):
        self.cut = threading.Event()

    def abort(self):
        self.cut.set()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


def placed(pool, stripes, *sizes):
    """Give the stripes memory of these sizes; the future of whether it was filled."""
    stripes.agree_later = pool.submit(stripes.agree, b"manifest")
    assert stripes.manifest() == b"manifest"
    filled = pool.submit(stripes.receive_into, [memoryview(bytearray(size)) for size in sizes])
    stripes.agree_later.result(PATIENCE_S)
    return filled


def test_blobs_are_cut_into_ranges_and_taken_in_order(pool):
    stripes = RangeScheduler(1)
    filled = placed(pool, stripes, 3, 0, RANGE_BYTES + 1)
    taken = [stripes.take(wait=False) for _ in range(4)]
    assert taken == [
        Range(0, 0, 3),
        Range(2, 0, RANGE_BYTES),
        Range(2, RANGE_BYTES, 1),
        None,
    ]
    for _ in range(3):
        stripes.received()
    assert filled.result(PATIENCE_S)
    assert stripes.take(wait=True) is None


def test_what_a_lost_donor_was_asked_for_is_taken_by_another_that_waits(pool):
    stripes = RangeScheduler(2)
    lost = Cut()
    stripes.enter(lost)
    filled = placed(pool, stripes, 2 * RANGE_BYTES)
    asked = [stripes.take(wait=False), stripes.take(wait=False)]
    waiting = pool.submit(stripes.take, wait=True)
    stripes.leave(lost, asked)
    assert waiting.result(PATIENCE_S) == asked[0]
    assert stripes.take(wait=True) == asked[1]
    stripes.received()
    stripes.received()
    assert filled.result(PATIENCE_S)


def test_another_manifest_is_refused(pool):
    stripes = RangeScheduler(2)
    placed(pool, stripes, 1)
    with pytest.raises(ProtocolError, match="not the one that the first donor offered"):
        stripes.agree(b"another")
    stripes.stop()


def test_when_the_last_thread_ends_nobody_is_waited_for(pool):
    stripes = RangeScheduler(2)
    filled = placed(pool, stripes, 1)
    stripes.end_thread()
    assert not filled.done()
    stripes.end_thread()
    assert filled.result(PATIENCE_S) is False


def test_without_any_manifest_there_is_none(pool):
    stripes = RangeScheduler(1)
    waiting = pool.submit(stripes.manifest)
    stripes.end_thread()
    assert waiting.result(PATIENCE_S) is None


def test_a_stop_wakes_everyone(pool):
    stripes, link = RangeScheduler(2), Cut()
    stripes.enter(link)
    filled = placed(pool, stripes, RANGE_BYTES)
    taken = stripes.take(wait=False)
    waiting = pool.submit(stripes.take, wait=True)
    stripes.stop()
    assert link.cut.is_set()
    assert stripes.over
    assert waiting.result(PATIENCE_S) is None
    assert filled.result(PATIENCE_S) is False
    stripes.leave(link, [taken])
    assert stripes.take(wait=False) is None


def test_a_cut_waits_until_nobody_writes_any_more(pool):
    stripes, link = RangeScheduler(1), Cut()
    stripes.enter(link)
    cutting = pool.submit(stripes.cut)
    assert link.cut.wait(PATIENCE_S)
    assert not cutting.done()
    stripes.leave(link, [])
    cutting.result(PATIENCE_S)


def test_after_a_stop_nobody_begins(pool):
    stripes = RangeScheduler(1)
    stripes.stop()
    assert stripes.manifest() is None
    with pytest.raises(DtdError, match="no longer needed"):
        stripes.enter(Cut())
    with pytest.raises(DtdError, match="no longer needed"):
        stripes.agree(b"manifest")


def test_memory_is_let_go_of_when_nobody_touches_it() -> None:
    """The ring keeps the scheduler for as long as the generation lasts."""
    memory = bytearray()
    stripes = RangeScheduler(1)
    assert stripes.receive_into([memoryview(memory)])
    stripes.cut()
    memory.append(1)  # refused while a view of it exists
