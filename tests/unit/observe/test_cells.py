from __future__ import annotations

import math

import pytest

from dtd.observe.pyramid import EMPTY, Cell, cell_of, cells_of, merged, merged_rows, summary


def test_a_summary_of_one_value_is_that_value():
    assert cell_of(2.5) == Cell(1, 2.5, 2.5, 2.5)
    assert cell_of(2.5).mean == 2.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_in_no_summary(value):
    assert cell_of(value) == EMPTY
    assert cells_of([(value, 1.0), (value, value)]) == [EMPTY, cell_of(1.0)]
    assert EMPTY.mean is None


def test_summaries_are_merged():
    both = merged(Cell(2, 3.0, 1.0, 2.0), Cell(1, -4.0, -4.0, -4.0))
    assert both == Cell(3, -1.0, -4.0, 2.0)
    assert merged(EMPTY, both) == merged(both, EMPTY) == both


def test_rows_are_summarised_column_by_column():
    assert cells_of([(1.0, -2.0), (3.0, 4.0)]) == [Cell(2, 4.0, 1.0, 3.0), Cell(2, 2.0, -2.0, 4.0)]
    assert cells_of([(1e308,), (1e308,)])[0].values == 2


def test_many_summaries_become_one():
    assert summary([EMPTY, Cell(2, 3.0, 1.0, 2.0), Cell(1, 0.5, 0.5, 0.5)]) == Cell(3, 3.5, 0.5, 2)
    assert summary([EMPTY]) == summary([]) == EMPTY


def test_columns_that_were_added_later_are_kept():
    one, two = [cell_of(1.0)], [cell_of(3.0), cell_of(5.0)]
    assert merged_rows(one, two) == [Cell(2, 4.0, 1.0, 3.0), cell_of(5.0)]
    assert merged_rows(two, one) == [Cell(2, 4.0, 1.0, 3.0), cell_of(5.0)]
