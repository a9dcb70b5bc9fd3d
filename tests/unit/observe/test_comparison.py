"""Runs side by side: what differs, what was last and best, curves."""

from __future__ import annotations

from typing import Any

from dtd.job import parse_job, to_mapping
from dtd.observe.comparison import Run, compare, differences


def details(*overrides: str, **changed: Any) -> dict[str, Any]:
    text = '[job]\nname="digits"\ntask="digits"\nepochs=1\nglobal_batch_size=64\n'
    return {
        "id": "digits-1",
        "name": "digits",
        "task": "digits",
        "state": "done",
        "step": 20,
        "total_steps": 20,
        "tags": [],
        "note": "",
        "submitted_s": 1.0,
        "started_s": 2.0,
        "ended_s": 3.0,
        "result": {"steps": 20, "train_loss": 0.5, "replica_digests": {"w": "ab"}},
        "spec": to_mapping(parse_job(text, source="test", overrides=overrides)),
        "package": "",
        "task_digest": "",
        "dataset_rows": 10,
        "dataset_fingerprint": "f",
        "from_job": "",
        "from_step": 0,
        "from_mode": "",
        "weights": "",
        "world_size": 2,
        "environment": {"torch": "2.14"},
        **changed,
    }


def points(*means: float | None) -> list[list[Any]]:
    """A point of two steps for each mean, which lies between a half and twice of it."""
    return [
        [2 * at + 1, 2 * at + 2, 2, mean / 2, mean, mean * 2]
        if mean is not None
        else [2 * at + 1, 2 * at + 2, 0, None, None, None]
        for at, mean in enumerate(means)
    ]


def run(series: dict[str, list[list[Any]]], *overrides: str, **changed: Any) -> Run:
    listed = [{"name": name, "kind": "x", "points": of} for name, of in series.items()]
    return Run(details=details(*overrides, **changed), series=listed)


def test_each_kind_of_difference() -> None:
    one = details("job.seed=1")
    other = details(
        "job.seed=2",
        package="ab",
        dataset_rows=11,
        from_job="digits-0",
        environment={"torch": "2.15", "cuda": "13"},
        world_size=3,
    )
    found = {(d["of"], d["key"]): d["values"] for d in differences([one, other])}
    assert found == {
        ("setting", "job.seed"): [1, 2],
        ("code", "package"): ["", "ab"],
        ("data", "dataset_rows"): [10, 11],
        ("origin", "from_job"): ["", "digits-0"],
        ("environment", "torch"): ["2.14", "2.15"],
        ("environment", "cuda"): [None, "13"],
        ("workers", "world_size"): [2, 3],
    }


def test_last_and_best_and_curves() -> None:
    first = run({"loss": points(4.0, 1.0, 2.0), "eval/accuracy": points(0.25, 0.5, 0.375)})
    second = run(
        {"loss": points(3.0, None), "learning_rate": points(1.0)}, id="digits-2", result={}
    )
    told = compare([first, second], ())
    assert [job["id"] for job in told["jobs"]] == ["digits-1", "digits-2"]
    assert told["jobs"][0]["result"]["train_loss"] == 0.5
    assert "replica_digests" not in told["jobs"][0]["result"]
    assert told["figures"] == [
        {
            "name": "loss",
            "lower_is_better": True,
            "of": [
                {"last": 0.5, "best": 0.5, "begin": 3, "end": 4},
                {"last": 3.0, "best": 1.5, "begin": 1, "end": 2},
            ],
        },
        {
            "name": "eval/accuracy",
            "lower_is_better": False,
            "of": [{"last": 0.375, "best": 1.0, "begin": 3, "end": 4}, None],
        },
    ]
    assert told["curves"] == [
        {"name": "loss", "kind": "steps", "of": [[[2, 4.0], [4, 1.0], [6, 2.0]], [[2, 3.0]]]},
        {
            "name": "eval/accuracy",
            "kind": "evaluations",
            "of": [[[2, 0.25], [4, 0.5], [6, 0.375]], []],
        },
    ]


def test_a_job_says_which_values_are_better() -> None:
    runs = [
        run({"eval/error": points(1.0)}),
        run(
            {"eval/error": points(2.0)},
            'checkpoint.best_metric="error"',
            'checkpoint.best_mode="min"',
        ),
    ]
    assert compare(runs, ())["figures"][0]["lower_is_better"] is True
    assert compare(runs[:1], ())["figures"][0]["lower_is_better"] is False
