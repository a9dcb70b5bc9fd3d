"""The ledger of committed rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.sampler import Ledger


def test_complete_epochs_leave_nothing_missing_or_repeated():
    ledger = Ledger(10)
    for epoch in range(3):
        ledger.commit(epoch, range(6))
        ledger.commit(epoch, range(6, 10))
    assert (ledger.rows_missing, ledger.rows_repeated, ledger.epoch) == (0, 0, 3)


def test_a_repeated_row_is_counted():
    ledger = Ledger(10)
    ledger.commit(0, [1, 2])
    ledger.commit(0, [2, 3])
    assert ledger.rows_repeated == 1
    assert ledger.committed == 3


def test_rows_left_out_are_counted_when_the_next_epoch_begins():
    ledger = Ledger(10)
    ledger.commit(0, range(7))
    ledger.commit(1, [0])
    assert ledger.rows_missing == 3
    assert ledger.epoch == 1
    assert ledger.committed == 1


def test_an_unfinished_epoch_is_not_missing_yet():
    ledger = Ledger(10)
    ledger.commit(0, range(7))
    assert ledger.rows_missing == 0


@given(st.integers(1, 200), st.lists(st.integers(0, 199), max_size=60))
def test_it_survives_being_written_down(length, rows):
    ledger = Ledger(length)
    ledger.commit(0, [row % length for row in rows])
    read = Ledger.from_mapping(ledger.to_mapping())
    assert read.to_mapping() == ledger.to_mapping()
    read.commit(read.epoch, [0])
    ledger.commit(ledger.epoch, [0])
    assert read.to_mapping() == ledger.to_mapping()
