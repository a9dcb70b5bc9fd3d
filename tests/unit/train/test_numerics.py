"""The fingerprint of clip and optimizer."""

from __future__ import annotations

import torch

from dtd.job import OptimizerTable
from dtd.train.fingerprints import numerics_fingerprint

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


def test_torchs_version_is_in_it(monkeypatch) -> None:
    before = numerics_fingerprint(OptimizerTable(), CPU)
    monkeypatch.setattr(torch, "__version__", "0.0")
    assert numerics_fingerprint(OptimizerTable(), CPU) != before


def test_builds_of_one_version_are_compared_by_what_they_compute(monkeypatch) -> None:
    release = torch.__version__.partition("+")[0]
    prints = []
    for build in ("", "+cpu", "+cu130"):
        monkeypatch.setattr(torch, "__version__", release + build)
        prints.append(numerics_fingerprint(OptimizerTable(), CPU))
    assert len(set(prints)) == 1
