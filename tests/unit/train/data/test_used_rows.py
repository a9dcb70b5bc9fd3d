"""Which rows went through the model, against the plan."""

from __future__ import annotations

import pytest
import torch

from dtd.strategy.scalars import USED_WORDS
from dtd.train.data.rows import BatchRequest, LoadedBatch, UsedRows, checksum


def used(asked: tuple[int, ...], loaded: tuple[int, ...], epoch: int = 0) -> UsedRows:
    tally = UsedRows()
    tally.add(
        BatchRequest(step=0, epoch=0, rows=asked),
        LoadedBatch(batch=None, epoch=epoch, rows=loaded),
    )
    return tally


def summed(tallies: list[UsedRows]) -> UsedRows:
    """The ring's sums of them: integers, added up modulo 2**64."""
    words = torch.tensor([tally.words() for tally in tallies], dtype=torch.int64)
    assert words.shape[1] == USED_WORDS
    return UsedRows.of_words(words.sum(dim=0).tolist())


@pytest.mark.parametrize("ranks", [1, 3, 1024])
def test_the_sum_over_all_ranks_is_that_of_the_plan(ranks) -> None:
    rows = tuple(range(7 * ranks))
    tallies = [used(rows[i::ranks], rows[i::ranks]) for i in range(ranks)]
    total = summed(tallies)
    assert total.against(checksum(0, rows), len(rows)) == (0, 0)
    assert total.against(checksum(1, rows), len(rows)) == (1, 1)


@pytest.mark.parametrize(
    ("loaded", "epoch", "amiss"),
    [
        ((1, 2, 3), 0, (0, 0)),
        ((1, 3, 2), 0, (0, 0)),
        ((1, 2, 4), 0, (1, 1)),
        ((1, 2, 2), 0, (1, 1)),
        ((1, 2), 0, (1, 0)),
        ((1, 2, 3, 3), 0, (0, 1)),
        ((), 0, (3, 0)),
        ((1, 2, 3), 1, (3, 3)),
    ],
)
def test_a_rank_knows_what_it_did_not_get(loaded, epoch, amiss) -> None:
    tally = used((1, 2, 3), loaded, epoch)
    assert summed([tally, used((8,), (8,))]).against(checksum(0, (1, 2, 3, 8)), 4) == amiss
    assert bool(tally.example) == (epoch != 0 or loaded != (1, 2, 3))


def test_slices_that_overlap_show_in_the_sum_alone() -> None:
    total = summed([used((1, 2), (1, 2)), used((2, 3), (2, 3))])
    assert total.against(checksum(0, (1, 2, 3, 4)), 4) == (1, 1)
