from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dtd.observe.pyramid import LEVELS, width
from dtd.observe.store import (
    GROWING,
    Extent,
    Removal,
    aligned,
    outdated,
    to_forget,
    to_shrink,
)


def extent(level=0, *, track=1, job=1, first=0, newest=10_000, size=1000):
    return Extent(track, job, level, first, newest, size)


def test_what_is_removed_ends_where_a_coarser_bucket_begins():
    assert aligned(0, 23) == 16
    assert aligned(1, 130) == 16
    assert aligned(LEVELS - 1, width(LEVELS - 1) + 5) == 1


def test_old_rows_are_removed_and_the_newest_are_not():
    assert outdated(extent(), [5003]) == Removal(1, 0, 5000)
    assert outdated(extent(), [20_000]) == Removal(1, 0, 10_000 // 8 * 8 - GROWING)
    assert outdated(extent(first=5000), [5003]) is None
    assert outdated(extent(newest=10), [10]) is None


def test_coarse_levels_have_no_age():
    assert outdated(extent(level=3), [1, 1, 1]) is None


def test_who_holds_most_gives_up_its_finest_rows():
    small = extent(track=1, job=1, size=100)
    fine, coarse = extent(0, track=2, job=2, size=200), extent(1, track=2, job=2, size=500)
    assert to_shrink([small, coarse, fine]) == Removal(2, 0, 1248)


def test_a_little_is_given_up_where_there_is_little():
    few = extent(newest=GROWING + 20)
    assert to_shrink([few]) == Removal(1, 0, 8)


def test_nothing_is_spared_of_what_still_grows():
    assert to_shrink([]) is None
    assert to_shrink([extent(newest=GROWING), extent(LEVELS - 1)]) is None


def test_the_oldest_job_is_forgotten_but_not_the_one_that_is_written():
    assert to_forget({1: 5.0, 2: 3.0, 3: 9.0}, writing=3) == 2
    assert to_forget({1: 5.0}, writing=1) is None


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(0, LEVELS - 2))
def test_shrinking_ends(first, more, level):
    """Each removal removes something, whole buckets of the next level, and spares the newest."""
    newest = first // 8 * 8 + more
    one = extent(level, first=first // 8 * 8, newest=newest)
    removal = to_shrink([one])
    if removal is not None:
        assert one.first < removal.below <= newest - GROWING
        assert removal.below * width(level) % width(level + 1) == 0
