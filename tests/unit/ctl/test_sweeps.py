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


@pytest.fixture
def file(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    path = tmp_path / "lr.toml"
    path.write_text(SWEEP)
    return path


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
