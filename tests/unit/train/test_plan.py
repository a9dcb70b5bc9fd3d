"""The plan of a job."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize("accumulation", [1, 2])
def test_shares_by_speed_use_every_row_of_an_epoch_once(accumulation) -> None:
    job = {"name": "j", "task": "digits", "global_batch_size": 24, "epochs": 2}
    own = replace(plan(77, job=job, train={"grad_accumulation": accumulation}), costs=(10, 40, 20))
    used, sizes = [], []
    for step in range(4):
        shares = [own.share(step, rank=rank, world_size=3) for rank in range(3)]
        used += [row for share in shares for request in share.requests for row in request.rows]
        sizes.append([share.rows for share in shares])
        if step < 3:
            assert {len(share.requests) for share in shares} == {own.most_parts(step, 3)}
        assert [share.counts for share in shares] == [False, False, True]
    assert sorted(used) == list(range(77))
    assert sizes == [{1: [14, 3, 7], 2: [14, 4, 6]}[accumulation]] * 3 + [[1, 2, 2]]


def test_costs_of_another_number_of_ranks_divide_nothing() -> None:
    own = replace(plan(100), costs=(10, 40))
    assert own.slice_of(30, rank=1, world_size=3) == (10, 20)
    assert own.slice_of(30, rank=3, world_size=3) == (0, 0)
