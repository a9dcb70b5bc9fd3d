"""The plan of a job."""

from __future__ import annotations

import pytest

from dtd.job import from_mapping
from dtd.train.data.sampling import Shuffled
from dtd.train.plan import JobPlan


def plan(rows: int = 10, *, job=None, **tables) -> JobPlan:
    base = {"name": "j", "task": "digits", "global_batch_size": 4, "epochs": 2}
    spec = from_mapping({"job": job or base, **tables}, source="test")
    return JobPlan(spec=spec, order=Shuffled(rows))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_shares_use_every_row_of_an_epoch_once(world_size, accumulation) -> None:
    own = plan(train={"grad_accumulation": accumulation})
    used = []
    for step in range(3):
        shares = [own.share(step, rank=r, world_size=world_size) for r in range(world_size)]
        assert sum(share.rows for share in shares) == own.global_rows(step)
        for share in shares:
            assert sum(len(request.rows) for request in share.requests) == share.rows
            assert all(request.rows for request in share.requests)
            assert all(request.step // accumulation == step for request in share.requests)
            used += [row for request in share.requests for row in request.rows]
        first = [place for share in shares for place in share.first_rows]
        assert first == sorted(set(first))
    assert sorted(used) == list(range(10))
