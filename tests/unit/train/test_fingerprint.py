"""Fingerprints of data, and of clip and optimizer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from dtd.errors import TaskError
from dtd.job import OptimizerTable
from dtd.train.data.loader import Loader
from dtd.train.task import CollatedRows
from dtd.train.warm_up import fingerprints
from dtd.train.warm_up.fingerprints import numerics_fingerprint


def dataset_fingerprint(dataset: Any, seed: int) -> str:
    with Loader(dataset, seed=seed) as loader:
        return fingerprints.dataset_fingerprint(dataset, seed, loader.read)


def test_equal_data_has_an_equal_fingerprint_and_other_data_another() -> None:
    rows = [(torch.full((2,), float(row)), row) for row in range(10)]
    same = [(torch.full((2,), float(row)), row) for row in range(10)]
    prints = {dataset_fingerprint(rows, 0), dataset_fingerprint(same, 0)}
    assert len(prints) == 1
    changed = [*rows[:9], (torch.tensor([9.0, 9.5]), 9)]
    prints |= {
        dataset_fingerprint(changed, 0),
        dataset_fingerprint(rows[:9], 0),
        dataset_fingerprint([(values.double(), row) for values, row in rows], 0),
        dataset_fingerprint([(values[None], row) for values, row in rows], 0),
    }
    assert len(prints) == 5


def test_random_augmentation_does_not_disturb_it_nor_the_generators() -> None:
    class Augmented:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, row: int) -> tuple[float, float, float]:
            return random.random(), float(np.random.rand()), float(torch.rand(()))

    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    first = dataset_fingerprint(Augmented(), 0)
    assert torch.rand(()) == expected
    assert dataset_fingerprint(Augmented(), 0) == first
    assert dataset_fingerprint(Augmented(), 1) != first


def test_a_dataclass_counts_by_its_fields() -> None:
    @dataclass(frozen=True)
    class Row:
        x: torch.Tensor
        name: str = "a"

    class Rows:
        def __init__(self, *rows: Row) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return 1

        def __getitem__(self, row: int) -> Row:
            return self.rows[row]

    def of(row: Row) -> str:
        return dataset_fingerprint(CollatedRows(Rows(row), lambda rows: rows), 0)

    first = of(Row(torch.ones(2)))
    assert first == of(Row(torch.ones(2)))
    assert len({first, of(Row(torch.zeros(2))), of(Row(torch.ones(2), "b"))}) == 3


def test_content_without_bytes_is_refused() -> None:
    class Opaque:
        def __len__(self) -> int:
            return 1

        def fetch(self, row_ids: list[int], *, epoch: int, seed: int) -> object:
            return object()

        def __getitem__(self, row: int) -> object:
            return object()

    with pytest.raises(TaskError, match="row 0 of the dataset holds a object"):
        dataset_fingerprint(Opaque(), 0)


CPU = torch.device("cpu")


def test_equal_jobs_have_equal_fingerprints_and_others_do_not() -> None:
    tables = [
        OptimizerTable(lr=0.1),
        OptimizerTable(lr=0.2),
        OptimizerTable(name="adamw", lr=0.1),
    ]
    prints = [numerics_fingerprint(table, CPU) for table in tables]
    assert prints == [numerics_fingerprint(table, CPU) for table in tables]
    assert len(set(prints)) == 3
