from __future__ import annotations

from dtd.observe.pyramid import LEVELS
from dtd.observe.query import (
    MOST_POINTS,
    Piece,
    Slot,
    columns_at_once,
    level_for,
    pieces,
    slots_of,
)


def test_a_plot_reads_at_least_as_many_buckets_as_it_has_points():
    assert level_for(1, 1000, 1000) == 0
    assert level_for(1, 7999, 1000) == 0
    assert level_for(1, 8000, 1000) == 1
    assert level_for(1, 1_000_000, 1000) == 3
    assert level_for(5, 4, 10) == 0


def test_all_of_a_level_is_read_where_nothing_was_removed():
    assert pieces(10, 100, 1, [0] * LEVELS) == [Piece(1, 1, 12)]


def test_coarser_buckets_stand_in_for_those_that_were_removed():
    kept_from = [640, 512, 0, 0, 0, 0]
    assert pieces(10, 700, 0, kept_from) == [Piece(2, 0, 7), Piece(1, 64, 79), Piece(0, 640, 700)]
    assert pieces(10, 600, 0, kept_from) == [Piece(2, 0, 7), Piece(1, 64, 75)]
    assert pieces(650, 700, 0, kept_from) == [Piece(0, 650, 700)]


def test_nothing_is_read_of_an_empty_range():
    assert pieces(10, 9, 0, [0] * LEVELS) == []


def test_neighbours_become_one_point():
    found = slots_of([(0, step) for step in range(1, 9)], 1, 8, 2)
    assert found == [Slot(1, 4, 0, 4), Slot(5, 8, 4, 8)]


def test_a_bucket_that_began_before_the_range_is_its_first_point():
    assert slots_of([(1, 0)], 5, 7, 3) == [Slot(0, 7, 0, 1)]


def test_the_newest_bucket_ends_with_the_range_and_not_beyond_the_last_step():
    (last,) = slots_of([(1, 150)], 1200, 1200, 1)
    assert (last.begin, last.end) == (1200, 1200)


def test_an_answer_has_few_columns_of_many_points():
    assert columns_at_once(MOST_POINTS) == 1
    assert columns_at_once(1000) == MOST_POINTS // 1000
    assert columns_at_once(MOST_POINTS + 1) == 1


def test_what_no_level_has_is_not_read():
    assert pieces(10, 700, 4, [640] * LEVELS) == [Piece(4, 0, 0)]
    assert pieces(10, 700, 0, [640] * LEVELS) == [Piece(0, 640, 700)]
