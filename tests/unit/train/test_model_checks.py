"""Models that are refused: tensors that share memory, and too few rows for a rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import from_mapping
from dtd.train.data.sampling import order_of
from dtd.train.plan import JobPlan
from dtd.train.warm_up.model_checks import SingleRow, check_memory, smallest_rows

IMAGE = torch.zeros(1, 2, 4, 4)
VECTOR = torch.zeros(1, 2)


def plan(model: nn.Module, *, rows: int, batch: int, parts: int = 1) -> JobPlan:
    job = {"name": "j", "task": "digits", "global_batch_size": batch, "epochs": 1}
    mapping = {"job": job, "train": {"grad_accumulation": parts}}
    return JobPlan(
        spec=from_mapping(mapping, source="test"),
        order=order_of(object(), rows, batch_rows=batch, seed=0),
        smallest_rows=smallest_rows(model),
    )


def pooled() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(2))


class Counted:
    """A forward over one row that is counted."""

    def __init__(self, model: nn.Module, row: torch.Tensor) -> None:
        self.model, self.row = model, row
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.model(self.row)


@pytest.mark.parametrize(
    ("build", "row", "found"),
    [
        (pooled, IMAGE, 2),
        (lambda: nn.BatchNorm2d(2), IMAGE, 1),
        (lambda: nn.BatchNorm2d(2, track_running_stats=False).eval(), IMAGE[..., :1, :1], 2),
        (lambda: pooled().eval(), IMAGE, 1),
        (lambda: nn.BatchNorm1d(2), VECTOR, 2),
        (lambda: nn.BatchNorm1d(2).eval(), VECTOR, 1),
        (lambda: nn.LayerNorm(2), VECTOR, 1),
        (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Linear(7, 7)), IMAGE, 1),
    ],
)
def test_slices_are_as_large_as_the_model_needs(
    build: Callable[[], nn.Module], row: torch.Tensor, found: int
) -> None:
    model = build()
    forward = Counted(model, row)
    single = SingleRow(model, forward)
    fitted = single.fit(plan(model, rows=26, batch=8), 4)
    requests = [
        request
        for step in range(4)
        for rank in range(4)
        for request in fitted.share(step, rank=rank, world_size=4).requests
    ]
    assert min(len(request.rows) for request in requests) == found
    assert sum(len(request.rows) for request in requests) == 26
    assert single.fit(fitted, 4) == fitted
    assert forward.count <= 1


@pytest.mark.parametrize(("rows", "batch", "parts"), [(9, 8, 1), (8, 1, 1), (8, 8, 5)])
def test_too_few_rows_for_one_rank_are_refused(rows: int, batch: int, parts: int) -> None:
    model = pooled()
    single = SingleRow(model, Counted(model, IMAGE))
    with pytest.raises(TaskError, match=r"has 1 row, .*BatchNorm.*job\.global_batch_size"):
        single.fit(plan(model, rows=rows, batch=batch, parts=parts), 1)


class Views(nn.Module):
    """A trained parameter of columns 0 to 3 of a matrix, and what is given beside it."""

    def __init__(self, **others) -> None:
        super().__init__()
        self.matrix = torch.zeros(5, 6)
        self.trained = nn.Parameter(self.matrix[:, :3])
        for name, of in others.items():
            setattr(self, name, of(self.matrix))

    def check(self) -> None:
        check_memory(self, [one for one in self.parameters() if one.requires_grad])


@pytest.mark.parametrize(
    "of",
    [
        lambda matrix: nn.Parameter(matrix[:, 3:]),  # interleaved, row by row
        lambda matrix: nn.Parameter(matrix[:, 3:], requires_grad=False),
        lambda matrix: nn.Buffer(matrix[2, 4:]),
        lambda matrix: nn.Parameter(matrix[:, :3].clone()),
        lambda matrix: nn.Parameter(matrix[:0]),
    ],
)
def test_parts_that_have_no_element_in_common_are_separate(of) -> None:
    Views(other=of).check()


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (lambda matrix: nn.Parameter(matrix[4, 2:]), "parameter"),
        (lambda matrix: nn.Parameter(matrix[1:], requires_grad=False), "parameter"),
        (lambda matrix: nn.Buffer(matrix[:1]), "buffer"),
        (lambda matrix: nn.Buffer(matrix.view(torch.int32)), "buffer"),
    ],
)
def test_a_common_element_is_named_with_both(of, kind) -> None:
    with pytest.raises(TaskError, match=f"trained and other share memory.*the {kind} other would"):
        Views(other=of).check()
