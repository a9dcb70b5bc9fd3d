"""`dtdctl show`, `compare`, `tag` and `note` against a scripted coordinator."""

from __future__ import annotations

import json

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
CHECKPOINT = {
    "generation": 3,
    "step": 46,
    "size_bytes": 2048,
    "worker": "worker-0",
    "alive": True,
    "metrics": {"accuracy": 0.9125},
    "directory": DIRECTORY,
}
JOB = {
    "id": "digits-1",
    "name": "digits",
    "task": "digits",
    "state": "done",
    "reason": "",
    "submitted_s": 60.0,
    "started_s": 61.0,
    "ended_s": 101.0,
    "spec": SPEC,
    "package": "",
    "step": 46,
    "total_steps": 46,
    "epoch": 2,
    "generation": 3,
    "world_size": 2,
    "from_job": "",
    "from_step": 0,
    "from_mode": "",
    "task_digest": "",
    "lines": 7,
    "workers": ["worker-0", "worker-1"],
    "steps_lost": 0,
    "skipped_steps": 0,
    "result": {"steps": 46, "train_loss": 0.5, "eval_accuracy": 0.9125},
    "metrics": {"accuracy": 0.9125},
    "dataset_rows": 1437,
    "dataset_fingerprint": "f" * 32,
    "incidents": {"job_started": 1, "worker_lost": 2},
    "checkpoints": [CHECKPOINT],
}


def test_a_job_that_is_done(dtdctl, server, result):
    server.script = lambda _message: result(JOB)
    exit_code, out, err = dtdctl("show", "digits-1")
    assert (exit_code, err) == (0, "")
    assert out.splitlines() == [
        "job          digits-1  done  step 46/46 (100%)  epoch 2",
        "submitted    1970-01-01 00:01:00",
        "started      1970-01-01 00:01:01  ended 1970-01-01 00:01:41  duration 40s",
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
    assert server.received == [m.ShowJob(job="digits-1")]
    assert json.loads(dtdctl("show", "digits-1", "-o", "json")[1]) == JOB


COMPARISON = {
    "jobs": [
        {**JOB, "tags": [], "note": ""},
        {**JOB, "id": "digits-2", "tags": ["a", "b"], "note": "n" * 50, "started_s": None},
    ],
    "differences": [
        {"of": "setting", "key": "optimizer.lr", "values": [0.1, 0.2]},
        {"of": "code", "key": "package", "values": ["", "ab" * 32]},
    ],
    "figures": [
        {
            "name": "loss",
            "lower_is_better": True,
            "of": [{"last": 2.0, "best": 0.5, "begin": 3, "end": 4}, None],
        },
        {
            "name": "eval/accuracy",
            "lower_is_better": False,
            "of": [None, {"last": 0.5, "best": 0.75, "begin": 10, "end": 10}],
        },
    ],
    "curves": [
        {"name": "loss", "kind": "steps", "of": [[[1, 4.0], [20, 1.0]], []]},
        {"name": "eval/accuracy", "kind": "evaluations", "of": [[], []]},
    ],
}


def test_a_comparison(dtdctl, server, result):
    server.script = lambda _message: result(COMPARISON)
    code, out, err = dtdctl("compare", "digits-1", "digits-2", "--names", "loss", "--points", "9")
    assert (code, err) == (0, "")
    (asked,) = server.received
    assert asked == m.CompareJobs(jobs=("digits-1", "digits-2"), names=("loss",), points=9)
    lines = [line.split() for line in out.splitlines()]
    assert lines[3:6] == [
        ["duration", "40s", "-"],
        ["tags", "-", "a", "b"],
        ["note", "-", "n" * 37 + "..."],
    ]
    assert lines[7:10] == [
        ["DIFFERS", "digits-1", "digits-2"],
        ["setting", "optimizer.lr", "0.1", "0.2"],
        ["code", "package", "-", "ab" * 6],
    ]
    assert lines[12:16] == [
        ["loss", "last", "2", "-"],
        ["lowest", "0.5", "at", "3-4", "-"],
        ["eval/accuracy", "last", "-", "0.5"],
        ["highest", "-", "0.75", "at", "10"],
    ]
    assert lines[17] == ["loss", "1", "to", "4,", "step", "0", "to", "20"]
    assert (lines[18][0], lines[18][1][0], lines[18][1][-1]) == ("digits-1", "█", "▁")
    assert lines[19:] == [["digits-2"]]
