"""Pages are bounded in bytes as well as in rows."""

from __future__ import annotations

import msgpack

from dtd.coordinator.store.tables import page, size_of


def test_rows_are_taken_while_they_fit() -> None:
    rows = [{"text": "x" * 100} for _ in range(10)]
    assert page(rows) == rows
    assert len(page(rows, most_bytes=3 * size_of(rows[0]))) == 3
    assert page([]) == []


def test_a_row_that_is_too_large_is_a_page_of_its_own() -> None:
    rows = [{"text": "x" * 100}, {"text": "y"}]
    assert page(rows, most_bytes=10) == rows[:1]


def test_sizes_are_about_those_of_answers() -> None:
    row = {"seq": 1, "lines": ["a" * 50, b"b" * 60], "pair": (1.5, None), "map": {"key": True}}
    assert len(msgpack.packb(row)) <= size_of(row) <= 2 * len(msgpack.packb(row))
