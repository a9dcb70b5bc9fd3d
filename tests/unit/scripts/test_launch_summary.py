from __future__ import annotations

from pathlib import Path

from scripts.launch_report import LocalRun, summary_lines, summary_object

RESULT = {
    "world_size": 4,
    "servers": 0,
    "steps": 60,
    "epochs": 5,
    "train_loss": 0.25,
    "eval_loss": 0.3,
    "eval_accuracy": 0.9611,
    "samples_per_s": 12345.6,
    "replica_digests": {"worker-0": "ab" * 16, "worker-1": "ab" * 16},
    "steps_lost": 0,
    "rows_missing": 0,
    "rows_repeated": 0,
}
KEYS = [
    *("job", "state", "world_size", "servers", "steps", "epochs", "train_loss", "eval_loss"),
    *(
        "eval_accuracy",
        "samples_per_s",
        "replica_digests",
        "steps_lost",
        "rows_missing",
        "rows_repeated",
    ),
    *("restarts", "restarts_of", "directory", "weights", "ended_early", "web"),
]
RESTARTS = {"worker-1": 2, "coordinator": 1}


def run(**changes):
    usual = {"job": "digits-1", "state": "done", "reason": "", "result": RESULT, "last": {}}
    kept = {"directory": Path("/runs/a"), "weights": Path("/runs/a/model.safetensors")}
    return LocalRun(**{**usual, **kept, "restarts": RESTARTS, "took_s": 6.25, **changes})


def test_the_object_has_exactly_the_documented_keys():
    made = summary_object(run(web="http://127.0.0.1:7118/"))
    assert list(made) == KEYS
    head = {"job": "digits-1", "state": "done"}
    kept = {"directory": "/runs/a", "weights": "/runs/a/model.safetensors", "ended_early": ""}
    kept |= {"web": "http://127.0.0.1:7118/"}
    assert made == {**head, **RESULT, "restarts": 2, "restarts_of": RESTARTS, **kept}


def test_a_failed_job_has_them_too_from_the_last_status():
    last = {"world_size": 2, "step": 7, "epoch": 1, "loss": 0.5, "samples_per_s": 10.0}
    made = summary_object(run(state="failed", result={}, last={**last, "steps_lost": 3}))
    assert list(made) == KEYS
    assert (made["world_size"], made["steps"], made["steps_lost"]) == (2, 7, 3)
    assert made["eval_accuracy"] is None
    assert made["replica_digests"] == {}


def test_replicas_that_differ_are_shouted():
    digests = {"worker-0": "a", "worker-1": "b"}
    lines = summary_lines(run(result={**RESULT, "replica_digests": digests}))
    assert "  replicas    2, NOT equal: 2 different digests" in lines
