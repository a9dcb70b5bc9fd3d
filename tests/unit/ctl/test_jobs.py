"""The commands about jobs and workers against a scripted coordinator."""

from __future__ import annotations

import json

import pytest

from dtd.wire import messages as m

RESULT = {"steps": 46, "train_loss": 0.5, "eval_loss": None, "eval_accuracy": 0.9125}
FAILED = {"job": "digits-1", "state": "failed", "reason": "ValueError: no", "result": {}}


# --- wait --------------------------------------------------------------------------------------


def test_wait_exits_4_when_the_job_failed(dtdctl, server, result):
    server.script = lambda _message: result(FAILED)
    exit_code, out, err = dtdctl("wait", "digits-1")
    assert (exit_code, out) == (4, "")
    assert "job digits-1 failed: ValueError: no" in err
    assert "dtdctl logs digits-1" in err
    exit_code, out, _err = dtdctl("wait", "digits-1", "-o", "json")
    assert (exit_code, json.loads(out)) == (4, FAILED)


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"jobs": []}, ""),
        ({"jobs": [{"id": "other-2", "state": "running", "explain": ""}]}, ""),
        ({"jobs": [{"id": "digits-1", "state": "running", "explain": ""}]}, "digits-1 is running"),
        (
            {"jobs": [{"id": "digits-1", "state": "saving", "explain": "worker-1 cannot write"}]},
            "digits-1 is saving: worker-1 cannot write",
        ),
    ],
)
def test_wait_gives_up_in_time_and_says_what_keeps_the_job(dtdctl, server, result, status, why):
    server.script = lambda message: b"" if isinstance(message, m.WaitJob) else result(status)
    exit_code, _out, err = dtdctl("wait", "digits-1", "--timeout", "0.05")
    assert exit_code == 1
    assert f"has not ended within 0.05 s{': job ' if why else ' '}{why}" in err.replace("\n", " ")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_wait_shows_a_bar_on_a_terminal(dtdctl, server, result, status, monkeypatch, no_color):
    monkeypatch.setenv("FORCE_COLOR", "1")
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("dtd.ctl.output.can_redraw", lambda _stream: True)
    monkeypatch.setattr("dtd.ctl.commands.jobs.BAR_EVERY_S", 0.02)
    server.script = lambda message: result(status) if isinstance(message, m.GetStatus) else b""
    exit_code, out, err = dtdctl("wait", "digits-1", "--timeout", "0.2")
    assert (exit_code, out) == (1, "")
    assert "120/600" in err


def test_a_wait_tells_how_far_the_job_is(dtdctl, server, result, status, monkeypatch):
    monkeypatch.setattr("dtd.ctl.commands.jobs.LINE_EVERY_S", 0.02)
    server.script = lambda message: result(status) if isinstance(message, m.GetStatus) else b""
    _exit_code, _out, err = dtdctl("wait", "digits-1", "--timeout", "0.2")
    assert "job digits-1: running, step 120/600 (20%), epoch 3, loss 0.1235" in err


# --- lists -------------------------------------------------------------------------------------


def test_jobs(dtdctl, server, result):
    job = {
        **dict.fromkeys(("id", "name", "task"), "digits-1"),
        "state": "done",
        "reason": "",
        "submitted_s": 1.0,
        "started_s": 2.0,
        "ended_s": 9.5,
        "step": 46,
        "total_steps": 46,
        "result": RESULT,
        "settings": {"optimizer.lr": 0.1},
    }
    queued = {**job, "state": "queued", "started_s": None, "result": {}, "settings": {}}
    failed = {**job, "state": "failed", "reason": "boom", "tags": ["x", "y"]}
    failed["settings"] = {"a": 1, "b": 2, "c": 3, "d": None, "e": 5}
    server.script = lambda _message: result({"jobs": [job, queued, failed]})
    lines = dtdctl("jobs", "--tag", "x", "-o", "wide")[1].splitlines()
    assert server.received == [m.ListJobs(tag="x")]
    headings = "JOB TASK STATE STEP SUBMITTED DURATION TAGS SETTINGS RESULT"
    assert lines[0].split() == headings.split()
    narrow = dtdctl("jobs")[1].splitlines()
    assert narrow[0].split() == ["JOB", "STATE", "STEP", "DURATION", "TAGS", "SETTINGS", "RESULT"]
    assert "46/46 (100%)" in lines[1]
    assert "7.5s      -     optimizer.lr=0.1 " in lines[1]
    assert "  steps 46, train loss 0.5, accuracy 0.9125" in lines[1]
    assert lines[2].split()[-3:] == ["-", "-", "-"]
    assert " x y   a=1 b=2 c=3 d=- and 1 more  boom" in lines[3]
    assert json.loads(dtdctl("jobs", "-o", "json")[1])["jobs"] == [job, queued, failed]


# --- logs --------------------------------------------------------------------------------------


@pytest.fixture
def printed(server, result):
    """Serves three lines of two workers, and a fourth when the job has ended."""
    lines = [
        {"seq": seq, "rank": seq % 2, "worker": f"w-{seq % 2}", "text": f"line {seq}"}
        for seq in range(1, 5)
    ]
    seen = lines[:3]

    def answer(message):
        if isinstance(message, m.WaitJob):
            seen.append(lines[3])
            return result({"job": "j", "state": "done", "result": {}})
        rest = [line for line in seen if line["seq"] > message.after]
        return result({"lines": rest, "next": rest[-1]["seq"] if rest else message.after})

    server.script = answer


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("", [1, 2, 3]),
        ("--tail 2", [2, 3]),
        ("--worker w-1", [1, 3]),
        ("--worker w-1 --tail 1", [3]),
        ("-f", [1, 2, 3, 4]),
        ("-f --tail 0", [4]),
        ("-f --worker w-0", [2, 4]),
    ],
)
def test_logs(dtdctl, printed, options, numbers):
    exit_code, out, err = dtdctl("logs", "j", *options.split())
    expected = [f"[{number % 2} w-{number % 2}] line {number}" for number in numbers]
    assert (exit_code, out.splitlines(), err) == (0, expected, "")


def test_logs_of_a_worker_that_printed_nothing(dtdctl, printed):
    message = 'w1 printed nothing in j; did you mean "w-1"?\n'
    assert dtdctl("logs", "j", "--worker", "w1")[2] == message
