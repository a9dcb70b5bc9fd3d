from __future__ import annotations

import torch

from dtd.tasks.classification import MemoryRows


def test_fetching_is_what_collating_the_rows_gives() -> None:
    rows = MemoryRows(
        inputs=torch.arange(12, dtype=torch.uint8).view(6, 2),
        labels=torch.arange(6),
        prepare=lambda stored: stored.float() / 2,
    )
    inputs, labels = rows.fetch([4, 0, 4], epoch=3, seed=9)
    assert inputs.tolist() == [[4.0, 4.5], [0.0, 0.5], [4.0, 4.5]]
    assert labels.tolist() == [4, 0, 4]
    assert torch.equal(rows[4][0], inputs[0])
    assert len(rows) == 6
