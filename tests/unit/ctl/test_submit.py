"""Jobs that are submitted, repeated, extended and resumed, and the code that goes with them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from dtd.ctl.answers import parse_job_at_step
from dtd.ctl.submit import packed_task, ship
from dtd.errors import TaskError, UsageError
from dtd.job import parse_job, to_mapping
from dtd.packages.archive import Archive
from dtd.packages.limits import CHUNK_BYTES
from dtd.wire import messages as m

JOB = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 64
"""
SPEC = to_mapping(parse_job(JOB, source="test"))
DONE = {"job": "digits-2", "state": "done", "reason": "", "result": {"steps": 46}}
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


def test_submit_prints_the_id(dtdctl, job_file, server, result):
    server.script = lambda message: result(
        {"job": "digits-2"} if isinstance(message, m.SubmitJob) else DONE
    )
    assert dtdctl("submit", job_file, "--set", "optimizer.lr=0.5") == (0, "digits-2\n", "")
    (message,) = server.received
    assert message.spec["optimizer"]["lr"] == 0.5
    assert (message.from_job, message.from_step) == ("", 0)
    assert dtdctl("-o", "json", "submit", job_file)[1] == '{"job": "digits-2"}\n'
    exit_code, out, err = dtdctl("submit", job_file, "--wait")
    assert (exit_code, out) == (0, "digits-2\n")
    assert err.splitlines()[-1] == "job digits-2 is done: steps 46"


# --- origins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "mode", "what"),
    [("--resume-from", "resume", "everything"), ("--weights-from", "weights", "only the weights")],
)
def test_submit_says_what_is_taken_over(dtdctl, job_file, server, result, option, mode, what):
    server.script = lambda _message: result({**TAKEN, "from_mode": mode})
    exit_code, out, err = dtdctl("submit", job_file, option, "digits-1@20")
    (request,) = server.received
    assert (request.from_job, request.from_step, request.from_mode) == ("digits-1", 20, mode)
    assert (exit_code, out) == (0, "digits-2\n")
    assert err.splitlines() == [
        f"takes {what} from digits-1 at step 20",
        "  differs: job.epochs 2 -> 4",
        "  differs: schedule.min_lr - -> 0.5",
    ]


@pytest.mark.parametrize("text", ["@3", "a@", "a@0", "a@-1", "a@x", "a@1@2"])
def test_a_bad_origin(text):
    with pytest.raises(UsageError, match=r"--resume-from: .* does not name a job's state"):
        parse_job_at_step(text, source="--resume-from")


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


def test_a_repeated_job_starts_where_the_other_one_did(dtdctl, known):
    received = known(from_job="digits-0", from_newest=40, from_mode="weights", strict=False)
    dtdctl("submit", "--like", "digits-1")
    request = received[-1]
    assert (request.from_job, request.from_step, request.from_mode) == ("digits-0", 40, "weights")
    assert request.strict is False
    dtdctl("submit", "--like", "digits-1", "--resume-from", "own-5@3")
    request = received[-1]
    assert (request.from_job, request.from_step, request.from_mode) == ("own-5", 3, "resume")


def test_a_job_that_is_done_is_extended(dtdctl, known):
    received = known()
    words = ("--epochs", "4", "--set", "optimizer.lr=0.5")
    exit_code, out, err = dtdctl("extend", "digits-1", *words)
    assert (exit_code, out) == (0, "digits-2\n")
    shown, request = received
    assert shown == m.ShowJob(job="digits-1")
    assert (request.from_job, request.from_mode) == ("digits-1", "resume")
    assert request.package == "ab" * 32
    assert request.spec["job"]["epochs"] == 4
    assert request.spec["optimizer"]["lr"] == 0.5
    assert "job digits-2 continues where digits-1 ended" in err
    assert "4 epochs from the beginning" in err
    assert '[schedule] name = "constant" over that length' in err


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_ended_early_goes_on_as_a_new_one(dtdctl, known, state):
    received = known(state, {**TAKEN, "differs": []})
    exit_code, out, err = dtdctl("resume", "digits-1")
    assert (exit_code, out) == (0, "digits-2\n")
    request = received[1]
    assert (request.from_job, request.from_step, request.from_mode) == ("digits-1", 0, "resume")
    assert request.spec == SPEC
    assert err.splitlines() == [
        "job digits-2 continues where digits-1 ended",
        "takes everything from digits-1 at step 20",
    ]


def test_a_job_that_waits_is_told_to_go_on(dtdctl, known):
    received = known("waiting", {"job": "digits-1", "state": "forming"})
    words = "job digits-1 continues from the newest available state (forming)\n"
    assert dtdctl("resume", "digits-1") == (0, "", words)
    assert received == [m.ShowJob(job="digits-1"), m.ResumeJob(job="digits-1")]
    assert json.loads(dtdctl("resume", "digits-1", "-o", "json")[1])["state"] == "forming"


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


# --- the task's package ------------------------------------------------------------------------


class PlayedCoordinator:
    """Takes pieces in."""

    def __init__(self, have=0):
        self.got = []
        self._have = have

    def request(self, message, payload=b""):
        self.got.append((message.offset, len(payload)))
        self._have = message.offset + len(payload) if payload else self._have
        return {"have": self._have}


@pytest.mark.parametrize(
    ("have", "sent"),
    [
        (0, [(0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 5)]),
        (2 * CHUNK_BYTES, [(2 * CHUNK_BYTES, 5)]),
        (2 * CHUNK_BYTES + 5, []),
    ],
)
def test_an_archive_goes_in_pieces_from_where_it_ended(have, sent):
    coordinator = PlayedCoordinator(have)
    ship(coordinator, Archive(content=bytes(2 * CHUNK_BYTES + 5), digest="d" * 64, files=1))
    assert coordinator.got == [(0, 0), *sent]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A job file beside which packages are searched for; the current directory is another one."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "jobs").mkdir()
    return tmp_path / "jobs" / "job.toml"


def test_a_task_is_looked_for_beside_its_job_then_here(own, capsys):
    (Path.cwd() / "shop_here.py").write_text("here = 1\n")
    first = packed_task("shop_here:Task", own)
    (own.parent / "shop_here.py").write_text("there = 1\n")
    second = packed_task("shop_here:Task", own)
    assert first.digest != second.digest
    out, err = capsys.readouterr()
    assert out == ""
    assert f"ships {own.parent}/shop_here.py: 1 file, " in err
    assert second.digest[:12] in err


def test_what_a_task_imports_from_its_folder_goes_along(own, capsys):
    folder = own.parent
    (folder / "shop_train.py").write_text("from shop_model import Net\nimport shop_nets.wide\n")
    (folder / "shop_model.py").write_text("class Net: ...\n")
    (folder / "shop_nets").mkdir()
    (folder / "shop_nets" / "wide.py").write_text("")
    (folder / "shop_nets" / "sizes.txt").write_text("5")
    archive = packed_task("shop_train:Task", own)
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        assert tar.getnames() == [
            *("shop_model.py", "shop_nets/__init__.py", "shop_nets/sizes.txt"),
            *("shop_nets/wide.py", "shop_train.py"),
        ]
    shown = capsys.readouterr().err
    assert f"ships {folder}/shop_train.py, shop_model.py, shop_nets: 5 files, " in shown


@pytest.mark.parametrize(
    ("name", "whose"), [("random", "of Python's standard library"), ("dtd", "dtd itself")]
)
def test_a_module_beside_a_task_must_not_have_a_name_of_the_workers(own, name, whose):
    (own.parent / "shop_train.py").write_text(f"import {name}\n")
    assert packed_task("shop_train:Task", own) is not None
    (own.parent / f"{name}.py").write_text("")
    with pytest.raises(TaskError, match=rf"{name}\.py has the name of .*{whose}.*rename it"):
        packed_task("shop_train:Task", own)


def test_what_workers_have_is_not_shipped(own, capsys):
    assert packed_task("digits", own) is None
    assert packed_task("dtd.tasks.digits:Digits", own) is None
    assert capsys.readouterr().err == ""
    assert packed_task("pytest:Task", own) is None
    assert "pytest is installed here and not shipped" in capsys.readouterr().err
