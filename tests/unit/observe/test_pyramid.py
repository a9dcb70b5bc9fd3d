from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.pyramid import EMPTY, LEVELS, Bucket, Pyramid, cell_of, merged, summarised, width


def test_rows_are_added_in_order():
    pyramid = Pyramid()
    pyramid.add(3, [1.0])
    with pytest.raises(AssertionError, match="in order"):
        pyramid.add(3, [1.0])


def test_only_what_has_changed_is_written():
    pyramid = Pyramid()
    pyramid.add(7, [1.0])
    assert [(one.level, one.bucket) for one in pyramid.take_changed()] == [
        (level, 0) for level in range(1, LEVELS)
    ]
    assert pyramid.take_changed() == []
    pyramid.add(8, [2.0])
    changed = {one.level: one for one in pyramid.take_changed()}
    assert changed[1] == Bucket(1, 1, [cell_of(2.0)])
    assert changed[2].cells == [merged(cell_of(1.0), cell_of(2.0))]


def test_a_growing_bucket_goes_on_after_a_restart():
    pyramid = Pyramid(9, [Bucket(1, 1, [cell_of(5.0)])])
    pyramid.add(10, [7.0])
    assert pyramid.take_changed()[0] == Bucket(1, 1, [merged(cell_of(5.0), cell_of(7.0))])


def test_a_bucket_is_made_again_of_those_below():
    assert summarised(1, 4, []) is None
    below = [[cell_of(1.0)], [cell_of(3.0), cell_of(9.0)]]
    assert summarised(1, 4, below) == Bucket(
        1, 4, [merged(cell_of(1.0), cell_of(3.0)), cell_of(9.0)]
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 5000),
            st.one_of(st.integers(-1000, 1000).map(float), st.just(float("nan"))),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_every_level_has_the_sums_and_counts_of_all_rows(rows):
    """Whatever the gaps, and whenever the growing end is written down and taken up again."""
    pyramid, position, known = Pyramid(), -1, {}
    total = EMPTY
    for gap, value, restarts in rows:
        position += gap
        pyramid.add(position, [value])
        total = merged(total, cell_of(value))
        if restarts:
            known |= {(one.level, one.bucket): one for one in pyramid.take_changed()}
            growing = [known[level, position // width(level)] for level in range(1, LEVELS)]
            pyramid = Pyramid(position, growing)
    known |= {(one.level, one.bucket): one for one in pyramid.take_changed()}
    for level in range(1, LEVELS):
        found = EMPTY
        for one in known.values():
            found = merged(found, one.cells[0]) if one.level == level else found
        assert found == total
