"""`dtdctl sweep ...` against a scripted coordinator: what it sends, and what it shows."""

from __future__ import annotations

import pytest

from dtd.wire import messages as m

JOB = '[job]\nname = "tiny"\ntask = "digits"\nepochs = 2\nglobal_batch_size = 64\n'
SWEEP = """
job = "job.toml"
[sweep]
metric = "accuracy"
direction = "maximize"
trials = 3
[space]
"optimizer.lr" = { low = 0.001, high = 1.0, log = true }
"job.epochs" = { choices = [1, 2] }
"""
ROW = {
    "id": "sweep-1",
    "job": "tiny",
    "state": "running",
    "reason": "",
    "method": "tpe",
    "metric": "accuracy",
    "direction": "maximize",
    "pruner": "none",
    "begun": 2,
    "planned": 3,
    "began_s": 100.0,
    "ended_s": None,
}
TRIAL = {
    "number": 0,
    "state": "done",
    "job": "tiny-s1-t0-4",
    "params": {"optimizer.lr": 0.12345678, "job.epochs": 2},
    "value": 0.5,
    "evaluations": 2,
    "reason": "",
}
FAILED = {"number": 1, "state": "failed", "value": None, "job": "", "reason": "no task\nTraceback"}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    path = tmp_path / "lr.toml"
    path.write_text(SWEEP)
    return path


def rows(out):
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.mark.parametrize("words", [("sweep",), ("sweep", "begin")])
def test_a_sweep_is_begun(dtdctl, server, result, file, check_output, words):
    server.script = lambda _message: result({"sweep": "sweep-1", "trials": 3})
    code, out, err = dtdctl(*words, str(file))
    assert (code, out) == (0, "sweep-1\n"), err
    (sent,) = server.received
    assert isinstance(sent, m.BeginSweep)
    assert sent.package == ""  # a built-in task
    assert (sent.spec["sweep"]["metric"], sent.spec["sweep"]["trials"]) == ("accuracy", 3)
    assert sent.spec["base"]["job"]["name"] == "tiny"
    assert sent.spec["space"]["job.epochs"] == {"choices": [1, 2]}
    check_output(("sweep", "begin"), dtdctl(*words, str(file), "-o", "json")[1])


def test_the_code_of_an_own_task_goes_along_unless_told_otherwise(
    dtdctl, server, result, file, tmp_path
):
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    (tmp_path / "job.toml").write_text(JOB.replace('"digits"', '"mine:Mine"'))
    server.script = lambda message: result(
        {"sweep": "sweep-1", "trials": 3} if isinstance(message, m.BeginSweep) else {"have": 2**31}
    )
    code, _out, err = dtdctl("sweep", str(file))
    assert code == 0, err
    put, begin = server.received
    assert isinstance(put, m.PutPackage)
    assert begin.package == put.digest
    assert dtdctl("sweep", "begin", str(file), "--no-ship")[0] == 0
    assert server.received[-1].package == ""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"optimizer.lr"', '"optimizer.lrr"', 'did you mean "optimizer.lr"?'),
        ('job = "job.toml"', 'job = "none.toml"', "none.toml"),
        ('job = "job.toml"', "job = 3", "job: must be the name of a job file"),
        ("[1, 2] }", "[1, 2", "lr.toml"),
    ],
)
def test_a_mistake_is_named_before_anything_is_sent(dtdctl, server, file, before, after, said):
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    code, out, err = dtdctl("sweep", str(file))
    assert (code, out, server.received) == (2, "", [])
    assert said in err


def test_everything_about_one(dtdctl, server, result, check_output):
    space = {"optimizer.lr": {"low": 0.001, "high": 1.0}, "job.epochs": {"choices": [1, 2]}}
    about = {"importance": {"job.epochs": 0.25, "optimizer.lr": 0.75}, "best": TRIAL}
    shown = {**ROW, "space": space, "trials": [TRIAL, {**TRIAL, **FAILED}], **about}
    server.script = lambda _message: result(shown)
    assert rows(dtdctl("sweep", "status", "sweep-1")[1]) == [
        "sweep-1 running tpe over tiny trials 2/3 maximize accuracy",
        "best trial 0 tiny-s1-t0-4 accuracy 0.5",
        "optimizer.lr = 0.12345678",
        "job.epochs = 2",
        "importance optimizer.lr 75 % job.epochs 25 %",
        "",
        "TRIAL STATE JOB ACCURACY optimizer.lr job.epochs NOTE",
        "0 done tiny-s1-t0-4 0.5 0.123457 2",
        "1 failed - 0.123457 2 no task",
    ]
    assert server.received == [m.ShowSweep(sweep="sweep-1")]
    check_output(("sweep", "status"), dtdctl("sweep", "status", "sweep-1", "-o", "json")[1])
