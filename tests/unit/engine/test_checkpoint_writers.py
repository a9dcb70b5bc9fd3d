"""The writers of checkpoints: different hosts first, then the lowest ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtd.engine.agenda import checkpoint_writers


@pytest.mark.parametrize(
    ("hosts", "copies", "writers"),
    [
        ("a", 1, {0}),
        ("a", 3, {0}),
        ("aabb", 1, {0}),
        ("aabb", 2, {0, 2}),
        ("aabb", 3, {0, 1, 2}),
        ("aaab", 2, {0, 3}),
        ("abcd", 2, {0, 1}),
        ("abab", 9, {0, 1, 2, 3}),
    ],
)
def test_writers(hosts: str, copies: int, writers: set[int]) -> None:
    assert checkpoint_writers(list(hosts), copies) == writers
    assert checkpoint_writers(list(hosts), copies, sharded=True) == {*range(len(hosts))}


@given(
    hosts=st.lists(st.sampled_from("abcde"), min_size=1, max_size=12),
    copies=st.integers(1, 14),
)
def test_as_many_hosts_as_possible(hosts: list[str], copies: int) -> None:
    writers = checkpoint_writers(hosts, copies)
    assert 0 in writers
    assert len(writers) == min(copies, len(hosts))
    assert len({hosts[rank] for rank in writers}) == min(copies, len(set(hosts)))
