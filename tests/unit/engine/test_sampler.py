from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

from dtd.engine.sampler import (
    Position,
    advance,
    permuted_row,
    position_of_step,
    probe_rows,
    row_key,
    steps_per_epoch,
)
from dtd.train.data.sampling import batch_rows

GOLDEN_ORDER = [8, 0, 6, 1, 5, 9, 2, 4, 7, 3]
GOLDEN_KEY = 0xD0734750FDE362B3


def order(seed: int, epoch: int, length: int) -> list[int]:
    return [permuted_row(seed, epoch, place, length) for place in range(length)]


def test_the_order_never_changes_between_versions() -> None:
    # A job resumed by a newer dtd must go on with the rows that are left.
    assert order(0, 0, 10) == GOLDEN_ORDER
    assert row_key(1, 2, 3) == GOLDEN_KEY


def test_all_orders_of_a_short_epoch_are_equally_likely() -> None:
    epochs = 12_000
    seen = Counter(tuple(order(0, epoch, 5)) for epoch in range(epochs))
    expected = epochs / math.factorial(5)
    chi_squared = sum((seen[p] - expected) ** 2 / expected for p in permutations(range(5)))
    assert chi_squared < 190  # 119 degrees of freedom, p = 0.0001


def test_the_last_batch_of_an_epoch_is_partial() -> None:
    sizes = []
    position = Position(0, 0)
    while position.epoch == 0:
        rows = batch_rows(seed=0, position=position, global_batch_size=4, length=10)
        sizes.append(len(rows))
        position = advance(position, len(rows), 10)
    assert sizes == [4, 4, 2]
    assert position == Position(1, 0)
    assert steps_per_epoch(10, 4) == 3


def test_the_position_of_a_step_is_where_stepping_leads() -> None:
    position = Position(0, 0)
    for step in range(12):
        assert position_of_step(step, global_batch_size=4, length=10) == position
        rows = batch_rows(seed=0, position=position, global_batch_size=4, length=10)
        position = advance(position, len(rows), 10)


def test_probe_rows_hold_both_ends_and_a_sample() -> None:
    rows = probe_rows(3, 1000)
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    assert rows[-1] == 999
    assert 16 <= len(rows) <= 18
    assert probe_rows(4, 1000) != rows
    assert probe_rows(0, 1) == [0]
    assert probe_rows(0, 3) == [0, 1, 2]
    assert probe_rows(0, 0) == []


def test_row_keys_differ_by_seed_epoch_and_row() -> None:
    keys = {row_key(s, e, r) for s in range(8) for e in range(8) for r in range(64)}
    assert len(keys) == 8 * 8 * 64
