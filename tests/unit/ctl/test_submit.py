"""Jobs that are submitted, repeated, extended and resumed, and the code that goes with them."""

from __future__ import annotations

import json

import pytest

from dtd.ctl.commands.submit import packed_task
from dtd.errors import TaskError
from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

JOB = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 64
"""
SPEC = to_mapping(parse_job(JOB, source="test"))
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


@pytest.fixture
def known(server, result):
    """Has the coordinator know a job; its messages."""

    def make(state="done", taken=TAKEN, **changed):
        job = {"id": "digits-1", "state": state, "spec": SPEC, "package": "ab" * 32}
        origin = {"from_job": "", "from_step": 0, "from_newest": 0, "from_mode": "", "weights": ""}
        shown = {**job, **origin, "strict": True, **changed}
        server.script = lambda message: result(shown if isinstance(message, m.ShowJob) else taken)
        return server.received

    return make


def test_validate_needs_no_coordinator(dtdctl, job_file, server):
    assert dtdctl("validate", job_file) == (0, "", f"{job_file}: valid\n")
    exit_code, out, err = dtdctl("validate", job_file, "--set", "job.seed=7", "-o", "json")
    assert (exit_code, err) == (0, "")
    assert json.loads(out)["job"]["job"]["seed"] == 7
    assert server.received == []


def test_the_link_to_the_job_on_the_web_page_is_not_data(dtdctl, known):
    known(taken={**TAKEN, "page": "http://h:7118/#/job/digits-2"})
    out, err = dtdctl("submit", "--like", "digits-1")[1:]
    assert "web page: http://h:7118/#/job/digits-2 (to log in: dtdctl web)\n" in err
    assert "http" not in out


# --- origins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("JOB --resume-from a --weights-from b", "cannot be used together"),
        ("JOB --weights-from a@x", "does not name a job's state"),
        ("", "either from a file or like an earlier job"),
        ("JOB --like digits-1", "either from a file or like an earlier job"),
        ("--like digits-1 --weights-from w.safetensors", "cannot be sent along with --like"),
        ("--like digits-1 --set job.sead=7", 'did you mean "seed"?'),
        ("JOB --weights-from damaged.safetensors", "cannot be read"),
    ],
)
def test_options_that_contradict_one_another(dtdctl, job_file, known, words, why):
    received = known()
    exit_code, _out, err = dtdctl("submit", *words.replace("JOB", job_file).split())
    assert exit_code == 2
    assert why in err
    assert not [one for one in received if isinstance(one, m.SubmitJob)]


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


# --- from an earlier job -----------------------------------------------------------------------


def test_a_job_is_repeated_with_its_package_and_other_settings(dtdctl, known):
    received = known(taken={"job": "digits-2"})
    code, out, err = dtdctl("submit", "--like", "digits-1", "--set", "job.seed=7")
    assert (code, out) == (0, "digits-2\n")
    assert err == "job digits-2 is as digits-1 with its package abababababab, but job.seed=7\n"
    request = received[-1]
    assert request.spec == {**SPEC, "job": {**SPEC["job"], "seed": 7}}
    assert (request.package, request.from_job, request.weights) == ("ab" * 32, "", "")
    dtdctl("submit", "--like", "digits-1", "--no-ship")
    assert received[-1].package == ""


@pytest.mark.parametrize(
    ("state", "words", "code", "why"),
    [
        ("done", "extend digits-1", 2, "needs its new length"),
        ("done", "extend digits-1 --epochs 4 --steps 9", 2, "needs its new length"),
        ("running", "extend digits-1 --epochs 4", 1, "has not ended: it is running"),
        ("running", "resume digits-1 --set train.threads=2", 2, "its settings cannot be changed"),
        ("done", "resume digits-1", 1, "dtdctl extend digits-1"),
    ],
)
def test_a_job_that_cannot_go_on_like_that(dtdctl, known, state, words, code, why):
    received = known(state)
    exit_code, _out, err = dtdctl(*words.split())
    assert exit_code == code
    assert why in err
    assert not [one for one in received if isinstance(one, m.SubmitJob)]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("extend digits-1 --epochs 4", "its length"),
        ("extend digits-1", "its length"),
        ("submit --like digits-1 --set job.epochs=4", "job.epochs"),
        ("resume digits-1 --set job.global_batch_size=4", "job.global_batch_size"),
    ],
)
def test_what_a_script_sets_itself_is_refused(dtdctl, known, words, key):
    job = {**SPEC["job"], "task": "train:__main__"}
    received = known("failed", spec={**SPEC, "job": job})
    exit_code, _out, err = dtdctl(*words.split())
    assert exit_code == 2
    assert f"train.py sets {key} itself" in err
    assert "--set 'task.args=" in err
    assert not [one for one in received if isinstance(one, m.SubmitJob)]


# --- the task's package ------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A job file beside which packages are searched for; the current directory is another one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs" / "job.toml"


@pytest.mark.parametrize(
    ("name", "whose"), [("random", "of Python's standard library"), ("dtd", "dtd itself")]
)
def test_a_module_beside_a_task_must_not_have_a_name_of_the_workers(own, name, whose):
    (own.parent / "shop_train.py").write_text(f"import {name}\n")
    assert packed_task("shop_train:Task", own) is not None
    (own.parent / f"{name}.py").write_text("")
    with pytest.raises(TaskError, match=rf"{name}\.py has the name of .*{whose}.*rename it"):
        packed_task("shop_train:Task", own)
