"""Jobs that begin with what another one has learned, against a scripted coordinator."""

from __future__ import annotations

import json

import pytest

from dtd.ctl.answers import parse_job_at_step
from dtd.ctl.submit import Origin, read_origin
from dtd.errors import UsageError
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

JOB = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 64
"""
TAKEN = {
    "job": "digits-2",
    "from_mode": "resume",
    "from_step": 20,
    "differs": [["job.epochs", 2, 4], ["schedule.min_lr", None, 0.5]],
}


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def ended(state="done", **more):
    """An answer to SHOW_JOB."""
    spec = to_mapping(parse_job(JOB, source="test"))
    about = {"id": "digits-1", "state": state, "step": 20, "total_steps": 20, "spec": spec}
    return {**about, "package": "ab", **more}


def scripted(server, result, known, taken=TAKEN):
    """A coordinator that knows one job."""
    server.script = lambda message: result(known if isinstance(message, m.ShowJob) else taken)


@pytest.mark.parametrize(
    ("option", "mode"), [("--resume-from", "resume"), ("--weights-from", "weights")]
)
def test_submit_says_what_is_taken_over(dtdctl, job_file, server, result, option, mode):
    server.script = lambda _message: result({**TAKEN, "from_mode": mode})
    exit_code, out, err = dtdctl("submit", job_file, option, "digits-1@20")
    (request,) = server.received
    assert (request.from_job, request.from_step, request.from_mode) == ("digits-1", 20, mode)
    assert (exit_code, out) == (0, "digits-2\n")
    what = "everything" if mode == "resume" else "only the weights"
    lines = err.splitlines()
    assert lines[0] == f"takes {what} from digits-1 at step 20"
    assert lines[-2:] == ["  differs: job.epochs 2 -> 4", "  differs: schedule.min_lr - -> 0.5"]


def test_only_one_origin(dtdctl, job_file, server):
    words = ("--resume-from", "a", "--weights-from", "b")
    exit_code, _out, err = dtdctl("submit", job_file, *words)
    assert exit_code == 2
    assert "--resume-from and --weights-from cannot be used together" in err
    assert server.received == []
    assert read_origin(resume_from="", weights_from="") == Origin()


@pytest.mark.parametrize("option", ["--resume-from", "--weights-from"])
@pytest.mark.parametrize("text", ["@3", "a@", "a@0", "a@-1", "a@x", "a@1@2"])
def test_a_bad_origin(dtdctl, job_file, option, text, server):
    with pytest.raises(UsageError, match="does not name a job's state"):
        parse_job_at_step(text, source=option)
    exit_code, _out, err = dtdctl("submit", job_file, option, text)
    assert exit_code == 2
    assert option in err
    assert server.received == []


def test_weights_of_a_file_are_brought_first(dtdctl, job_file, server, result, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(10))

    def script(message):
        if isinstance(message, m.PutPackage):
            return result({"have": message.size if message.offset else 7})
        return result({"job": "digits-2"})

    server.script = script
    words = ("--weights-from", str(path), "--no-strict")
    exit_code, out, err = dtdctl("submit", job_file, *words)
    assert (exit_code, out) == (0, "digits-2\n")
    first, second, request = server.received
    assert (first.kind, first.offset, first.size) == ("weights", 0, 20)
    assert (second.offset, second.digest) == (7, first.digest)
    assert (request.weights, request.strict) == (first.digest, False)
    assert (request.from_job, request.from_mode) == ("", "weights")
    assert f"ships {path}: 20 B" in err
    assert f"takes only the weights from {path}" in err
    path.write_bytes(b"PK")
    assert dtdctl("submit", job_file, *words)[0] == 2


# --- extend ------------------------------------------------------------------------------------


def test_a_job_that_is_done_is_extended(dtdctl, server, result):
    scripted(server, result, ended())
    exit_code, out, err = dtdctl("extend", "digits-1", "--epochs", "4", "--set", "optimizer.lr=0.5")
    assert (exit_code, out) == (0, "digits-2\n")
    shown, request = server.received
    assert shown == m.ShowJob(job="digits-1")
    assert (request.from_job, request.from_mode, request.package) == ("digits-1", "resume", "ab")
    assert request.spec["job"]["epochs"] == 4
    assert request.spec["optimizer"]["lr"] == 0.5
    assert "job digits-2 continues where digits-1 ended" in err
    assert "4 epochs from the beginning" in err
    assert '[schedule] name = "constant" over that length' in err


@pytest.mark.parametrize("words", [(), ("--epochs", "4", "--steps", "9")])
def test_a_length_is_wanted(dtdctl, server, words):
    exit_code, _out, err = dtdctl("extend", "digits-1", *words)
    assert exit_code == 2
    assert "needs its new length" in err
    assert server.received == []


def test_a_job_that_has_not_ended_is_not_extended(dtdctl, server, result):
    scripted(server, result, ended("running"))
    exit_code, _out, err = dtdctl("extend", "digits-1", "--epochs", "4")
    assert exit_code == 1
    assert "has not ended: it is running" in err
    assert len(server.received) == 1


# --- resume ------------------------------------------------------------------------------------


def test_a_job_that_waits_is_told_to_go_on(dtdctl, server, result):
    scripted(server, result, ended("waiting"), {"job": "digits-1", "state": "forming"})
    words = "job digits-1 continues from the newest available state (forming)\n"
    assert dtdctl("resume", "digits-1") == (0, "", words)
    assert server.received == [m.ShowJob(job="digits-1"), m.ResumeJob(job="digits-1")]
    assert json.loads(dtdctl("resume", "digits-1", "-o", "json")[1])["state"] == "forming"
    exit_code, _out, err = dtdctl("resume", "digits-1", "--set", "train.threads=2")
    assert exit_code == 2
    assert "has not ended, so its settings cannot be changed" in err


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_ended_early_goes_on_as_a_new_one(dtdctl, server, result, state):
    scripted(server, result, ended(state), {**TAKEN, "differs": []})
    exit_code, out, err = dtdctl("resume", "digits-1")
    assert (exit_code, out) == (0, "digits-2\n")
    request = server.received[1]
    assert (request.from_job, request.from_step, request.from_mode) == ("digits-1", 0, "resume")
    assert request.spec == ended()["spec"]
    assert err.splitlines() == [
        "job digits-2 continues where digits-1 ended",
        "takes everything from digits-1 at step 20",
    ]


def test_a_job_that_is_done_has_nothing_left(dtdctl, server, result):
    scripted(server, result, ended())
    exit_code, _out, err = dtdctl("resume", "digits-1")
    assert exit_code == 1
    assert "job digits-1 is done" in err
    assert "dtdctl extend digits-1" in err
