"""The commands about jobs and workers against a scripted coordinator."""

from __future__ import annotations

import io
import json

import pytest

from dtd.wire import messages as m

RESULT = {"steps": 46, "train_loss": 0.5, "eval_loss": None, "eval_accuracy": 0.9125}
DONE = {"job": "digits-1", "state": "done", "reason": "", "result": {**RESULT, "steps_lost": 0}}
FAILED = {"job": "digits-1", "state": "failed", "reason": "ValueError: no", "result": {}}


# --- wait --------------------------------------------------------------------------------------


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
def test_a_wait_tells_how_far_the_job_is(dtdctl, server, result, status, monkeypatch, seen, line):
    monkeypatch.setattr("dtd.ctl.jobs.LINE_EVERY_S", 0.02)
    server.script = lambda message: (
        result({**status, **seen}) if isinstance(message, m.GetStatus) else b""
    )
    exit_code, out, err = dtdctl("wait", "digits-1", "--timeout", "0.2")
    assert (exit_code, out) == (1, "")
    assert line in err.splitlines()


def test_a_wait_shows_a_bar_on_a_terminal(dtdctl, server, result, status, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("dtd.ctl.output.wants_colour", lambda _stream: True)
    monkeypatch.setattr("dtd.ctl.jobs.BAR_EVERY_S", 0.02)
    server.script = lambda message: result(status) if isinstance(message, m.GetStatus) else b""
    exit_code, out, err = dtdctl("wait", "digits-1", "--timeout", "0.2")
    assert (exit_code, out) == (1, "")
    assert "120/600" in err


def test_wait_outlives_a_restart_of_the_coordinator(dtdctl, server, result, monkeypatch):
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_EVERY_S", 0.0)
    answers = iter([None, None, result(DONE)])
    server.script = lambda _message: next(answers)
    exit_code, out, err = dtdctl("wait", "digits-1")
    assert (exit_code, out) == (0, "digits-1\n")
    assert err.count("waiting for it to come back") == 2
    assert "steps 46, train loss 0.5, accuracy 0.9125, steps lost 0" in err
    monkeypatch.setattr("dtd.ctl.answers.RECONNECT_FOR_S", 0.0)
    server.script = lambda _message: None
    exit_code, _out, err = dtdctl("wait", "digits-1")
    assert exit_code == 3
    assert "closed the connection" in err


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
    lines = dtdctl("jobs", "--tag", "x")[1].splitlines()
    assert server.received == [m.ListJobs(tag="x")]
    headings = "JOB TASK STATE STEP SUBMITTED TOOK TAGS SETTINGS RESULT"
    assert lines[0].split() == headings.split()
    assert "46/46 (100%)" in lines[1]
    assert "7.5s  -     optimizer.lr=0.1 " in lines[1]
    assert "  steps 46, train loss 0.5, accuracy 0.9125" in lines[1]
    assert lines[2].split()[-3:] == ["-", "-", "-"]
    assert " x y   a=1 b=2 c=3 d=- and 1 more  boom" in lines[3]
    assert json.loads(dtdctl("jobs", "-o", "json")[1])["jobs"] == [job, queued, failed]


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
    assert [json.loads(line) for line in out.splitlines()] == lines


# --- commands with a short answer --------------------------------------------------------------

KILLED = {"name": "worker-1", "pid": 42, "signal": "TERM"}


@pytest.mark.parametrize(
    ("words", "request_", "answer", "told"),
    [
        (
            "cancel digits-1",
            m.CancelJob(job="digits-1"),
            {"job": "digits-1", "state": "stopping"},
            "job digits-1 is stopping\n",
        ),
        (
            "kill-worker worker-1",
            m.KillWorker(name="worker-1", signal="KILL"),
            {**KILLED, "signal": "KILL"},
            "SIGKILL was sent to worker-1 (pid 42)\n",
        ),
        (
            "kill-worker worker-1 --signal term",
            m.KillWorker(name="worker-1", signal="TERM"),
            KILLED,
            "SIGTERM was sent to worker-1 (pid 42)\n",
        ),
        (
            "drain worker-1",
            m.DrainWorker(name="worker-1"),
            {"name": "worker-1"},
            "worker-1 leaves at the next step boundary\n",
        ),
    ],
)
def test_short_answers(dtdctl, server, result, words, request_, answer, told):
    server.script = lambda _message: result(answer)
    assert dtdctl(*words.split()) == (0, "", told)
    assert server.received == [request_]
    assert json.loads(dtdctl(*words.split(), "-o", "json")[1]) == answer


# --- delete ------------------------------------------------------------------------------------

GONE = {"worker": "worker-0", "step": 20, "directory": "/a", "outcome": "deleted", "reason": ""}


@pytest.fixture
def kept(server, result):
    """A job with two checkpoints."""
    listed = [
        {"step": 20, "size_bytes": 2048, "worker": "worker-0"},
        {"step": 10, "size_bytes": 1024, "worker": "worker-1"},
    ]
    later = {**GONE, "worker": "worker-1", "outcome": "later", "reason": "it is not connected"}
    failed = {**GONE, "worker": "worker-3", "outcome": "failed", "reason": "/a is a link"}

    def answer(message):
        if isinstance(message, m.ShowJob):
            return result({"id": "digits-1", "checkpoints": listed})
        about = {"job": message.job, "step": message.step}
        return result({**about, "checkpoints": [GONE, later, failed]})

    server.script = answer


def test_a_job_is_deleted(dtdctl, server, kept):
    exit_code, out, err = dtdctl("delete", "digits-1", "--yes")
    assert (exit_code, out) == (0, "")
    assert server.received == [m.ShowJob(job="digits-1"), m.Delete(job="digits-1")]
    assert err.splitlines() == [
        "job digits-1 is deleted: 1 checkpoint from disks",
        "  worker-1 deletes step 20 later (it is not connected)",
        "  worker-3: /a is a link",
    ]


@pytest.mark.parametrize(
    ("typed", "terminal", "exit_code"),
    [("y\n", True, 0), ("\n", True, 1), ("no\n", True, 1), ("y\n", False, 2)],
)
def test_a_person_is_asked_first(dtdctl, server, kept, monkeypatch, typed, terminal, exit_code):
    stdin = io.StringIO(typed)
    stdin.isatty = lambda: terminal
    monkeypatch.setattr("sys.stdin", stdin)
    code, _out, err = dtdctl("delete", "digits-1@10")
    assert code == exit_code
    assert "this deletes 1 checkpoint of step 10 of digits-1: 1.0 KiB on worker-1" in err
    assert (m.Delete(job="digits-1", step=10) in server.received) is (exit_code == 0)
    assert ("use --yes" in err) is not terminal
