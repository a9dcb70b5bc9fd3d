from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtd.wire import messages as m

JOB = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 64
"""
DONE = {
    "job": "digits-1",
    "state": "done",
    "reason": "",
    "result": {
        "steps": 46,
        "train_loss": 0.5,
        "eval_loss": None,
        "eval_accuracy": 0.9125,
        "steps_lost": 0,
    },
}
FAILED = {"job": "digits-1", "state": "failed", "reason": "ValueError: no", "result": {}}


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_validate_needs_no_coordinator(dtdctl, job_file, server):
    assert dtdctl("validate", job_file) == (0, "", f"{job_file}: valid\n")
    exit_code, out, err = dtdctl("validate", job_file, "--set", "job.seed=7", "-o", "json")
    assert (exit_code, err) == (0, "")
    assert json.loads(out)["job"]["job"]["seed"] == 7
    assert server.received == []


def test_an_invalid_job_exits_2_with_all_problems(dtdctl, job_file):
    with Path(job_file).open("a") as file:
        file.write('[optimizer]\nlearning = 1\nname = "sdg"\n')
    exit_code, out, err = dtdctl("validate", job_file)
    assert (exit_code, out) == (2, "")
    assert "2 problems" in err
    assert "learning" in err
    assert "sgd" in err
    assert dtdctl("submit", job_file)[0] == 2
    assert dtdctl("validate", job_file + ".missing")[0] == 2


def test_submit_prints_the_id(dtdctl, job_file, server, result):
    server.script = lambda _message: result({"job": "digits-1"})
    assert dtdctl("submit", job_file, "--set", "optimizer.lr=0.5") == (0, "digits-1\n", "")
    (message,) = server.received
    assert isinstance(message, m.SubmitJob)
    assert message.spec["optimizer"]["lr"] == 0.5
    assert (message.from_job, message.from_step) == ("", 0)
    assert dtdctl("-o", "json", "submit", job_file)[1] == '{"job": "digits-1"}\n'


def test_submit_and_wait(dtdctl, job_file, server, result):
    server.script = lambda message: result(
        {"job": "digits-1"} if isinstance(message, m.SubmitJob) else DONE
    )
    exit_code, out, err = dtdctl("submit", job_file, "--wait")
    assert (exit_code, out) == (0, "digits-1\n")
    assert "steps 46, train loss 0.5, accuracy 0.9125, steps lost 0" in err


def test_wait_exits_4_when_the_job_failed(dtdctl, server, result):
    server.script = lambda _message: result(FAILED)
    exit_code, out, err = dtdctl("wait", "digits-1")
    assert (exit_code, out) == (4, "")
    assert "job digits-1 is failed: ValueError: no" in err
    assert "dtdctl logs digits-1" in err
    exit_code, out, _err = dtdctl("wait", "digits-1", "-o", "json")
    assert (exit_code, json.loads(out)) == (4, FAILED)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"job": None, "explain": "no job"}, ""),
        ({"job": {"id": "other-2", "state": "running"}}, ""),
        ({"job": {"id": "digits-1", "state": "running"}, "explain": ""}, "digits-1 is running"),
        (
            {"job": {"id": "digits-1", "state": "saving"}, "explain": "worker-1 cannot write"},
            "digits-1 is saving: worker-1 cannot write",
        ),
    ],
)
def test_wait_gives_up_in_time_and_says_what_keeps_the_job(dtdctl, server, result, status, why):
    server.script = lambda message: b"" if isinstance(message, m.WaitJob) else result(status)
    exit_code, _out, err = dtdctl("wait", "digits-1", "--timeout", "0.05")
    assert exit_code == 1
    assert f"has not ended within 0.05 s{': job ' if why else ' '}{why}" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        ({}, "job digits-1: step 120/600 (20%), running, loss 0.1235, 2,345/s"),
        ({"job": None, "queue": ["digits-1"]}, "job digits-1: step 0, queued"),
    ],
)
def test_a_wait_says_now_and_then_how_far_the_job_is(
    dtdctl, server, result, status, monkeypatch, seen, line
):
    monkeypatch.setattr("dtd.ctl.jobs.LINE_EVERY_S", 0.02)
    asked = []

    def script(message):
        asked.append(type(message))
        if isinstance(message, m.GetStatus):
            return result({**status, **seen})
        return b"" if asked.count(m.WaitJob) + asked.count(m.GetStatus) < 3 else result(DONE)

    server.script = script
    exit_code, out, err = dtdctl("wait", "digits-1", "--timeout", "0.5")
    assert exit_code == 1
    assert out == ""
    assert line in err.splitlines()


def test_wait_outlives_a_restart_of_the_coordinator(dtdctl, server, result, monkeypatch):
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_EVERY_S", 0.0)
    answers = iter([None, None, result(DONE)])
    server.script = lambda _message: next(answers)
    exit_code, out, err = dtdctl("wait", "digits-1")
    assert (exit_code, out) == (0, "digits-1\n")
    assert err.count("waiting for it to come back") == 2


def test_wait_does_not_wait_for_ever_for_a_coordinator(dtdctl, server, monkeypatch):
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_EVERY_S", 0.0)
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_FOR_S", 0.0)
    exit_code, _out, err = dtdctl("wait", "digits-1")
    assert exit_code == 3
    assert "closed the connection" in err


def test_cancel(dtdctl, server, result):
    server.script = lambda _message: result({"job": "digits-1", "state": "stopping"})
    assert dtdctl("cancel", "digits-1") == (0, "", "job digits-1 is stopping\n")
    assert json.loads(dtdctl("cancel", "digits-1", "-o", "json")[1])["state"] == "stopping"


def test_jobs(dtdctl, server, result):
    job = {
        "id": "digits-1",
        "name": "digits",
        "task": "digits",
        "state": "done",
        "reason": "",
        "submitted_s": 1.0,
        "started_s": 2.0,
        "ended_s": 9.5,
        "step": 46,
        "total_steps": 46,
        "generation": 1,
        "result": DONE["result"],
    }
    job["settings"] = {"optimizer.lr": 0.1}
    queued = {
        **job,
        "settings": {},
        "state": "queued",
        "started_s": None,
        "ended_s": None,
        "step": 0,
        "result": {},
    }
    failed = {**job, "state": "failed", "reason": "boom", "result": {}, "tags": ["x", "y"]}
    failed["settings"] = {"a": 1, "b": 2, "c": 3, "d": None, "e": 5}
    server.script = lambda _message: result({"jobs": [job, queued, failed]})
    exit_code, out, _err = dtdctl("jobs")
    lines = out.splitlines()
    assert exit_code == 0
    headings = "JOB TASK STATE STEP SUBMITTED TOOK TAGS SETTINGS RESULT"
    assert lines[0].split() == headings.split()
    assert "46/46 (100%)" in lines[1]
    assert "7.5s  -     optimizer.lr=0.1 " in lines[1]
    assert "  steps 46, train loss 0.5, accuracy 0.9125" in lines[1]
    assert lines[2].split()[-3:] == ["-", "-", "-"]
    assert " a=1 b=2 c=3 d=- and 1 more " in lines[3]
    assert lines[3].endswith("boom")
    assert " x y " in lines[3]
    assert json.loads(dtdctl("jobs", "-o", "json")[1])["jobs"][0]["id"] == "digits-1"


def test_what_a_job_printed_does_not_steer_a_terminal(dtdctl, server, result, monkeypatch):
    text = "\x1b[31mred\x1b[0m \x1b[2J\x9b2J\r[1 other] forged\u2028[2 other] forged"
    line = {"seq": 1, "rank": 0, "worker": "worker-0", "text": text, "time_s": 1.0}
    server.script = lambda message: result({"lines": [line][message.after :], "next": 1})
    told = (
        "[0 worker-0] red \\x1b[2J\\x9b2J\n[0 worker-0] [1 other] forged\\u2028[2 other] forged\n"
    )
    assert dtdctl("logs", "a")[1] == told  # a file is looked at later
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert dtdctl("logs", "a")[1] == told
    as_json = dtdctl("logs", "a", "-o", "json")[1]
    assert as_json.rstrip("\n").isprintable()
    assert json.loads(as_json)["text"] == text


def test_logs_are_read_page_by_page(dtdctl, server, result):
    lines = [
        {"seq": seq, "rank": 0, "worker": "worker-0", "text": f"line {seq}", "time_s": 1.0}
        for seq in (3, 7)
    ]

    def script(message):
        rest = [line for line in lines if line["seq"] > message.after][:1]
        return result({"lines": rest, "next": rest[0]["seq"] if rest else message.after})

    server.script = script
    assert dtdctl("logs", "a") == (0, "[0 worker-0] line 3\n[0 worker-0] line 7\n", "")
    out = dtdctl("logs", "a", "-o", "json")[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [3, 7]
