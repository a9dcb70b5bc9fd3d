"""Which checkpoints stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtd.checkpoint.format import checkpoint_name, list_checkpoints
from dtd.checkpoint.writer import Rules, best_checkpoint, retain


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


def kept(directory: Path, rules: Rules, *, now_unix_s: float = 0.0) -> list[int]:
    """The steps that stay."""
    return [int(name[-9:]) for name in retain(directory, rules, now_unix_s=now_unix_s)]


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
