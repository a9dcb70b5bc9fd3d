"""The cut of a bucket: every element in exactly one chunk, never an element split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.errors import LocalProtocolError
from dtd.exchange.schedule.chunks import (
    MAX_EXCHANGED,
    BucketShape,
    Operation,
    Segments,
    cut,
    exchanged,
)


def test_segments_of_ten_elements_for_four_ranks() -> None:
    segments = Segments(elements=10, world_size=4, chunk_elements=2)
    assert [segments.segment(index) for index in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert [segments.chunk_count(index) for index in range(4)] == [1, 2, 1, 2]
    assert [segments.chunk(1, chunk) for chunk in range(2)] == [(2, 4), (4, 5)]


@pytest.mark.parametrize(
    ("chunk_bytes", "item_bytes", "chunk_elements"),
    [(64, 4, 16), (65, 4, 16), (63, 4, 15), (8, 8, 1), (3, 8, 1)],
)
def test_a_chunk_never_splits_an_element(
    chunk_bytes: int, item_bytes: int, chunk_elements: int
) -> None:
    shape = BucketShape(elements=100, item_bytes=item_bytes)
    assert cut(shape, world_size=2, chunk_bytes=chunk_bytes).chunk_elements == chunk_elements


@given(
    elements=st.integers(0, 5000), world_size=st.integers(1, 64), chunk_elements=st.integers(1, 700)
)
def test_the_chunks_of_all_segments_tile_the_bucket(
    elements: int, world_size: int, chunk_elements: int
) -> None:
    segments = Segments(elements, world_size, chunk_elements)
    position = 0
    for index in range(world_size):
        for chunk in range(segments.chunk_count(index)):
            start, stop = segments.chunk(index, chunk)
            assert start == position
            assert stop - start <= chunk_elements
            position = stop
        assert position == segments.segment(index)[1]
    assert position == elements
    sizes = [stop - start for start, stop in map(segments.segment, range(world_size))]
    assert max(sizes) - min(sizes) <= 1


# --- which buckets are not cut ---------------------------------------------------------------


def whole(*sizes_bytes: int, whole_bytes: int = 1000, chunk_bytes: int = 1 << 20) -> list[int]:
    shapes = [BucketShape(elements=size, item_bytes=1) for size in sizes_bytes]
    found = exchanged(shapes, world_size=3, chunk_bytes=chunk_bytes, whole_bytes=whole_bytes)
    return sorted(found)


def test_small_buckets_that_fit_in_a_chunk_travel_whole() -> None:
    assert whole(1001, 1000, 0, 1) == [1, 2, 3]
    assert whole(1000, 999, chunk_bytes=999) == [1]


def test_of_many_small_buckets_the_last_go_round_whole() -> None:
    sizes = [1] * 20 + [1001] + [1]
    assert whole(*sizes) == [*range(20 - MAX_EXCHANGED + 1, 20), 21]


# --- operations as windows of one schedule -------------------------------------------------------


def half(operation: Operation, *, elements: int = 0, **parameters: object) -> BucketShape:
    return BucketShape(elements=elements, item_bytes=4, operation=operation, **parameters)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        (half(Operation.SUM), range(6)),
        (half(Operation.MAXIMUM), range(6)),
        (half(Operation.REDUCE_SCATTER), range(3)),
        (half(Operation.REDUCE_SCATTER, copies=1), range(4)),
        (half(Operation.REDUCE_SCATTER, copies=3), range(6)),
        (half(Operation.REDUCE_SCATTER, copies=7), range(6)),
        (half(Operation.ALL_GATHER), range(3, 6)),
        (half(Operation.ALL_GATHER, copies=2), range(5, 6)),
        (half(Operation.ALL_GATHER, hops=2), range(3, 5)),
        (half(Operation.ALL_GATHER, hops=9), range(3, 6)),
        (half(Operation.ALL_GATHER, copies=1, hops=2), range(4, 5)),
    ],
)
def test_the_hops_that_four_ranks_take(shape: BucketShape, window: range) -> None:
    assert shape.window(4) == window
    assert not shape.window(1)


@given(world_size=st.integers(1, 64), copies=st.integers(0, 70))
def test_two_halves_with_equal_copies_take_the_hops_of_a_sum(world_size: int, copies: int) -> None:
    scatter = half(Operation.REDUCE_SCATTER, copies=copies).window(world_size)
    gather = half(Operation.ALL_GATHER, copies=copies).window(world_size)
    assert [*scatter, *gather] == list(half(Operation.SUM).window(world_size))


def test_segments_of_unequal_size() -> None:
    shape = half(Operation.ALL_GATHER, elements=9, bounds=(0, 0, 7, 9))
    segments = cut(shape, world_size=3, chunk_bytes=16)
    assert [segments.segment(index) for index in range(3)] == [(0, 0), (0, 7), (7, 9)]
    assert [segments.chunk_count(index) for index in range(3)] == [1, 2, 1]
    assert [segments.chunk(1, chunk) for chunk in range(2)] == [(0, 4), (4, 7)]
    assert segments.own(0) == (0, 7)
    with pytest.raises(LocalProtocolError, match="3 segments in a ring of 4 ranks"):
        cut(shape, world_size=4, chunk_bytes=16)
