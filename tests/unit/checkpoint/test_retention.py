"""Which checkpoints stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dtd.checkpoint.format import checkpoint_name, list_checkpoints
from dtd.checkpoint.retention import Rules, best_checkpoint, retain
from dtd.cluster.generation.branches import Branch


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "job"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_retention_keeps_the_newest_and_the_best(directory, save_checkpoints) -> None:
    metrics = {
        step: {"accuracy": value} for step, value in [(1, 0.5), (2, 0.9), (3, 0.1), (4, 0.2)]
    }
    results = save_checkpoints(directory, 1, 2, 3, 4, metrics=metrics, keep=1, best="accuracy")
    assert [result.kept for result in results] == [
        tuple(checkpoint_name(1, step) for step in kept) for kept in [(1,), (2,), (3, 2), (4, 2)]
    ]
    assert names(directory) == [checkpoint_name(1, 2), checkpoint_name(1, 4)]


def test_lower_is_better_for_a_loss_and_the_newest_of_equals(directory, save_checkpoints) -> None:
    metrics = {step: {"eval_loss": value} for step, value in [(1, 0.5), (2, 0.5), (3, 0.9)]}
    save_checkpoints(directory, 1, 2, 3, 4, metrics=metrics)
    paths = list_checkpoints(directory.parent, "job")
    assert best_checkpoint(paths, "eval_loss").name == checkpoint_name(1, 2)
    assert best_checkpoint(paths, "accuracy") is None
    assert best_checkpoint(paths, "") is None
    assert retain(directory, Rules(keep=1, best_metric="eval_loss"), now_unix_s=0.0) == (
        checkpoint_name(1, 4),
        checkpoint_name(1, 2),
    )


def test_which_way_a_metric_is_better_can_be_said(directory, save_checkpoints) -> None:
    metrics = {step: {"error": value} for step, value in [(1, 0.5), (2, 0.1), (3, 0.9)]}
    save_checkpoints(directory, 1, 2, 3, metrics=metrics)
    paths = list_checkpoints(directory.parent, "job")
    assert best_checkpoint(paths, "error", "min").name == checkpoint_name(1, 2)
    assert best_checkpoint(paths, "error", "max").name == checkpoint_name(1, 3)
    assert best_checkpoint(paths, "error").name == checkpoint_name(1, 3)


def kept(directory: Path, rules: Rules, *, now_unix_s: float = 0.0) -> list[int]:
    """The steps that stay."""
    return [int(name[-9:]) for name in retain(directory, rules, now_unix_s=now_unix_s)]


def aged(directory: Path, *days: float) -> None:
    """Make checkpoints 1, 2, ... as old as that on day 100."""
    for step, age in enumerate(days, start=1):
        manifest = directory / checkpoint_name(1, step) / "manifest.json"
        os.utime(manifest, (86400 * (100 - age),) * 2)


def test_what_is_too_old_goes_but_not_the_newest_and_the_best(directory, save_checkpoints) -> None:
    metrics = {1: {"accuracy": 0.9}}
    save_checkpoints(directory, 1, 2, 3, 4, metrics=metrics)
    aged(directory, 9, 8, 3, 1)
    day_100 = 86400.0 * 100
    rules = Rules(keep=9, best_metric="accuracy", keep_days=5)
    assert kept(directory, rules, now_unix_s=day_100) == [4, 3, 1]
    assert kept(directory, rules, now_unix_s=day_100 + 86400 * 99) == [4, 1]
    assert kept(directory, Rules(keep=9, keep_days=0.5), now_unix_s=day_100 * 9) == [4]


def test_what_does_not_fit_in_goes_the_oldest_first(directory, save_checkpoints) -> None:
    save_checkpoints(directory, 1, 2, 3, 4, metrics={1: {"accuracy": 0.9}})
    folder = directory / checkpoint_name(1, 4)
    each = max(sum(f.stat().st_size for f in one.iterdir()) for one in directory.iterdir())
    assert folder.is_dir()
    best = {"keep": 9, "best_metric": "accuracy"}
    assert kept(directory, Rules(**best, keep_bytes=4 * each)) == [4, 3, 2, 1]
    assert kept(directory, Rules(**best, keep_bytes=3 * each)) == [4, 3, 1]
    assert kept(directory, Rules(**best, keep_bytes=1)) == [4, 1]
    assert kept(directory, Rules(keep=9, keep_bytes=1)) == [4]


def test_what_the_job_has_left_behind_stays(directory, save_checkpoints) -> None:
    """It went on from step 2 in generation 5; nobody can make steps 3 and 4 of before again."""
    save_checkpoints(directory, 1, 2, 3, 4, keep=9)
    save_checkpoints(directory, 1, 2, 3, 4, 5, generation=5, keep=9)
    rules = Rules(keep=2, keep_days=1.0, keep_bytes=1)
    stays = retain(directory, rules, now_unix_s=1e12, branches=[Branch(1, 2, 5)])
    assert stays == tuple(checkpoint_name(*key) for key in [(5, 5), (1, 4), (1, 3)])
    assert names(directory) == sorted(stays)
