"""`dtdctl show JOB` as text and as JSON."""

from __future__ import annotations

import json
import time

import pytest

from dtd.ctl.runs import job_lines
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

SPEC = to_mapping(
    parse_job(
        'job = {name = "digits", task = "digits", epochs = 2, global_batch_size = 64}\n'
        "[optimizer]\nlr = 0.5\n[task]\nwidth = 8\n",
        source="test",
    )
)
DIRECTORY = "/state/digits-1/g000003-s000000046"


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def known(**changes):
    job = {
        "id": "digits-1",
        "name": "digits",
        "task": "digits",
        "state": "done",
        "submitted_s": 60.0,
        "started_s": 61.0,
        "ended_s": 101.0,
        "step": 46,
        "total_steps": 46,
        "epoch": 2,
        "generation": 3,
        "reason": "",
        "result": {"steps": 46, "train_loss": 0.5, "eval_accuracy": 0.9125},
        "spec": SPEC,
        "package": "",
        "from_job": "",
        "from_step": 0,
        "from_mode": "",
        "world_size": 2,
        "workers": ["worker-0", "worker-1"],
        "steps_lost": 0,
        "skipped_steps": 0,
        "metrics": {"accuracy": 0.9125},
        "dataset_rows": 1437,
        "dataset_fingerprint": "f" * 32,
        "task_digest": "",
        "incidents": {"job_started": 1, "worker_lost": 2},
        "lines": 7,
        "checkpoints": [
            {
                "generation": 3,
                "step": 46,
                "size_bytes": 2048,
                "worker": "worker-0",
                "alive": True,
                "metrics": {"accuracy": 0.9125},
                "directory": DIRECTORY,
            }
        ],
    }
    return {**job, **changes}


def test_a_job_that_is_done():
    assert job_lines(known()) == [
        "job          digits-1  done  step 46/46 (100%)  epoch 2",
        "submitted    1970-01-01 00:01:00",
        "started      1970-01-01 00:01:01  ended 1970-01-01 00:01:41  took 40s",
        "task         digits  built in or installed",
        "data         1,437 rows  fingerprint ffffffffffff",
        "workers      worker-0, worker-1  generation 3",
        "result       steps 46, train loss 0.5, accuracy 0.9125",
        "evaluation   accuracy=0.9125",
        "recovery     steps lost 0  skipped 0",
        "events       job_started 1, worker_lost 2",
        "printed      7 lines  dtdctl logs digits-1",
        "",
        "settings that are not the default",
        '  job.name = "digits"',
        '  job.task = "digits"',
        "  job.epochs = 2",
        "  job.global_batch_size = 64",
        "  task.width = 8",
        "  optimizer.lr = 0.5",
        "",
        "checkpoints",
        f"  step 46  generation 3  2.0 KiB  worker-0  accuracy=0.9125  {DIRECTORY}",
    ]


def test_a_job_that_began_with_another_and_failed():
    trace = "\n".join(f"line {number}" for number in range(60))
    lines = job_lines(
        known(
            state="failed",
            reason="worker-0: ValueError: no",
            result={"traceback": trace},
            package="a" * 64,
            from_job="digits-0",
            from_step=12,
            from_mode="weights",
        )
    )
    assert lines[1] == "             worker-0: ValueError: no"
    assert "begins with  only the weights of digits-0 at step 12" in lines
    assert "task         digits  package aaaaaaaaaaaa" in lines
    assert lines[-41:-39] == ["traceback", "  line 20"]
    assert lines[-1] == "  line 59"


def test_the_command(dtdctl, server, result):
    server.script = lambda _message: result(known())
    exit_code, out, err = dtdctl("show", "digits-1")
    assert (exit_code, err) == (0, "")
    assert out.splitlines() == job_lines(known())
    assert server.received == [m.ShowJob(job="digits-1")]
    assert json.loads(dtdctl("show", "digits-1", "-o", "json")[1]) == known()
