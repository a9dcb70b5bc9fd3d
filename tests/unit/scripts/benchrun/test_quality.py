"""Four ranks in one process: that every strategy is a job, and that what is measured is kept."""

from __future__ import annotations

import json

import pytest

from dtd.errors import UsageError
from dtd.job import from_mapping
from scripts.benchrun import quality
from scripts.benchrun.__main__ import _parser


def options(directory, *arguments: str):
    text = directory / "tinyshakespeare.txt"
    if not text.exists():
        text.write_text("to be, or not to be: that is the question\n" * 60)
    given = ["quality", "--quick", "--data", str(directory), "--directory", str(directory)]
    return _parser().parse_args([*given, *arguments])


@pytest.mark.parametrize("task", quality.JOBS)
@pytest.mark.parametrize("name", quality.STRATEGIES)
def test_every_strategy_is_a_job_of_every_task(task, name) -> None:
    for steps in (None, quality.QUICK_STEPS):
        tables = quality.tables_of(task, quality.STRATEGIES[name], {}, seed=2, steps=steps)
        spec = from_mapping(tables, source="test")
        assert spec.job.seed == 2
        assert spec.codec == quality.STRATEGIES[name].get("codec", "none")


@pytest.mark.parametrize(("task", "optimizers"), [("resnet", "momentum"), ("chargpt", "beta1")])
def test_momentum_is_in_one_place(task, optimizers) -> None:
    own, plain = (
        from_mapping(quality.tables_of(task, quality.STRATEGIES[name], {}, seed=0), source="test")
        for name in ("top-k 1 %", "int8")
    )
    assert (own.strategy.momentum, getattr(own.optimizer, optimizers)) == (0.9, 0.0)
    assert (plain.strategy.momentum, getattr(plain.optimizer, optimizers)) == (0.0, 0.9)
    assert own.strategy.density_warmup_steps == (own.job.steps or 0) // 4


def test_what_is_missing_is_measured_and_the_rest_kept(tmp_path, capsys) -> None:
    quality.run(options(tmp_path, "--strategies", "float32"))
    assert "resnet: its data is not in" in capsys.readouterr().out
    (first,) = json.loads((tmp_path / "quality.json").read_text())["records"]
    assert (first["task"], first["strategy"], first["seed"], first["steps"]) == (
        "chargpt",
        "float32",
        0,
        quality.QUICK_STEPS,
    )
    assert len(first["curve"]) == quality.QUICK_STEPS
    assert 0 < first["metrics"]["loss"] < 5
    quality.run(options(tmp_path, "--strategies", "float32,int8"))
    said = capsys.readouterr().out
    assert "int8" in said
    assert "float32" not in said
    kept, added = json.loads((tmp_path / "quality.json").read_text())["records"]
    assert kept == first
    assert added["step_bytes"] < first["step_bytes"] / 2


@pytest.mark.parametrize("asked", [("--strategies", "int3"), ("--tasks", "mnist")])
def test_what_there_is_not_is_said(tmp_path, asked) -> None:
    with pytest.raises(UsageError, match=f"there is no '{asked[1]}'"):
        quality.run(options(tmp_path, *asked))
