"""Parts of a sharded state: unions, differences, elements and the wire."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.shards import MAX_DENOMINATOR, MAX_INTERVALS, NOTHING, WHOLE, ShardSet, united
from dtd.errors import ProtocolError
from dtd.exchange.schedule.chunks import Segments
from tests.shards import held_segments, held_shards

bounds = st.fractions(min_value=0, max_value=1, max_denominator=6)
sets = st.lists(st.tuples(bounds, bounds).map(sorted).map(tuple), max_size=5).map(ShardSet.of)


def _at(held: ShardSet) -> set[int]:
    """The elements of a bucket that has one for each denominator up to 6."""
    return {one for start, stop in held.ranges(60) for one in range(start, stop)}


@given(sets, sets)
def test_sets_of_shards_are_sets_of_elements(one, other):
    assert _at(one | other) == _at(one) | _at(other)
    assert _at(one - other) == _at(one) - _at(other)
    assert _at(one & other) == _at(one) & _at(other)
    assert one.covers(other) == (_at(one) >= _at(other))
    assert bool(one) == bool(_at(one))
    assert (one == other) == (_at(one) == _at(other))


@given(sets)
def test_a_set_comes_back_from_the_wire(held):
    assert ShardSet.from_wire(held.to_wire()) == held


@pytest.mark.parametrize(
    "numbers",
    [
        [0],
        [0, 1, 1, 0],
        [-1, 2, 1, 2],
        [0, 1, 3, 2],
        [1, 2, 1, 2],
        [1, 2, 0, 1],
        [0, 1, 1, 2, 1, 2, 1, 1],
        [1, 2, 1, 1, 0, 1, 1, 3],
        [0, 1, 1, MAX_DENOMINATOR + 1],
        [0, 1, 1, 1] * (MAX_INTERVALS + 1),
    ],
)
def test_what_is_no_set_of_shards_is_refused(numbers):
    with pytest.raises(ProtocolError, match="a set of shards is described by"):
        ShardSet.from_wire(numbers)


@given(st.integers(1, 9), st.integers(0, 200))
def test_segments_are_those_of_the_ring(world_size, elements):
    cut = Segments(elements, world_size, 1)
    for rank in range(world_size):
        start, stop = cut.own(rank)
        assert held_shards(rank, world_size, 0).ranges(elements) == (
            [(start, stop)] if start < stop else []
        )


@given(st.integers(1, 9), st.integers(0, 9))
def test_any_rank_may_be_lost_if_there_is_a_mirror(world_size, mirrors):
    held = [held_shards(rank, world_size, mirrors) for rank in range(world_size)]
    assert united(held) == WHOLE
    for lost in range(world_size):
        survivors = united(held[:lost] + held[lost + 1 :])
        assert survivors.is_whole == (mirrors > 0 and world_size > 1)
    assert all(one.is_whole for one in held) == (mirrors + 1 >= world_size)


def test_mirrors_are_those_of_the_ranks_before():
    assert held_segments(2, 4, 1) == [3, 2]
    assert held_segments(0, 4, 2) == [1, 0, 3]


def test_in_words():
    assert str(NOTHING) == "nothing"
    assert str(WHOLE) == "all"
    two = ShardSet.of([(Fraction(0), Fraction(1, 4)), (Fraction(1, 2), Fraction(3, 4))])
    assert str(two) == "0 to 1/4, 1/2 to 3/4"
