"""The last bucket of a step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dtd.strategy.scalars import StepScalars
from dtd.train.data.rows import UsedRows


def tally(rows: int) -> UsedRows:
    return UsedRows(checksum=(1 << 64) - rows, rows=rows, missing=rows, extra=2 * rows)


@pytest.mark.parametrize("cuts", [[0, 14], [0, 3, 14], [0, 8, 14], [0, 7, 10, 14]])
def test_tails_add_up(cuts) -> None:
    """Also in chunks that end before, in and after the border between the two types."""
    first, second = (StepScalars(parameters=3, buffer_elements=2, buffer_words=2) for _ in range(2))
    first.write(
        loss_sum=1.5, weight=2.0, end=False, used=tally(3).words(), present=[True, False, True]
    )
    second.write(
        loss_sum=0.5, weight=6.0, end=True, used=tally(4).words(), present=[True, False, False]
    )
    first.buffer_elements.copy_(torch.tensor([1.0, 2.0]))
    second.buffer_elements.copy_(torch.tensor([0.5, 0.0]))
    first.buffer_words.copy_(torch.tensor([2**53 + 1, 2**63 - 1]))
    second.buffer_words.copy_(torch.tensor([-2, 1]))
    for start, stop in itertools.pairwise(cuts):
        first.memory.add(start, stop, second.memory.view[8 * start : 8 * stop])
    totals = first.totals()
    assert (totals.loss_sum, totals.weight, totals.loss) == (2.0, 8.0, 0.25)
    assert UsedRows.of_words(totals.used) == UsedRows(
        checksum=(1 << 64) - 7, rows=7, missing=7, extra=14
    )
    assert totals.present == [True, False, True]
    assert totals.end
    assert first.buffer_elements.tolist() == [1.5, 2.0]
    assert first.buffer_words.tolist() == [2**53 - 1, -(2**63)]


def test_nothing_weighed_is_no_number() -> None:
    tail = StepScalars(parameters=1, buffer_elements=0, buffer_words=0)
    tail.write(loss_sum=0.0, weight=0.0, end=False, used=UsedRows().words(), present=[False])
    assert math.isnan(tail.totals().loss)
    assert not tail.totals().end
