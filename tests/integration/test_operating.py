"""An operator's work on jobs that have ended: look, go on, take over, delete.  One cluster."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.integration.conftest import Command

pytestmark = pytest.mark.integration

JOB = """
[job]
name = "small"
task = "digits"
epochs = 1
global_batch_size = 256
[checkpoint]
every_steps = 2
keep = 9
[elastic]
settle_s = 0.0
[schedule]
name = "cosine"
"""
STEPS = 6  # of an epoch


@pytest.fixture(scope="module")
def daemons(start_daemons):
    return start_daemons(2)


@pytest.fixture(scope="module")
def done(daemons, dtdctl, tmp_path_factory) -> str:
    """A job that is done, submitted and waited for."""
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    exit_code, out, err = dtdctl("submit", str(path), "--wait")
    assert exit_code == 0, err
    daemons.file = path
    return out.strip()


def shown(dtdctl: Command, job: str) -> dict:
    exit_code, out, err = dtdctl("show", job, "-o", "json")
    assert exit_code == 0, err
    return dict(json.loads(out))


def waited(dtdctl: Command, job: str) -> None:
    exit_code, _out, err = dtdctl("wait", job)
    assert exit_code == 0, err


def test_everything_about_a_job_is_shown(dtdctl, done):
    known = shown(dtdctl, done)
    assert (known["state"], known["step"], known["dataset_rows"]) == ("done", STEPS, 1438)
    assert known["dataset_fingerprint"]
    assert {one["step"] for one in known["checkpoints"]} == {2, 4, 6}
    assert known["incidents"]["job_done"] == 1
    exit_code, out, _err = dtdctl("show", done)
    assert exit_code == 0
    assert '  schedule.name = "cosine"' in out
    assert "1,438 rows" in out


def test_a_job_that_is_done_is_extended(dtdctl, done):
    exit_code, out, err = dtdctl("extend", done, "--epochs", "2")
    assert exit_code == 0, err
    job = out.strip()
    assert f"takes everything from {done} at step {STEPS}" in err
    assert "  differs: job.epochs 1 -> 2" in err
    waited(dtdctl, job)
    known = shown(dtdctl, job)
    assert (known["state"], known["step"]) == ("done", 2 * STEPS)
    result = known["result"]
    assert (result["rows_missing"], result["rows_repeated"], result["steps_lost"]) == (0, 0, 0)
    _exit_code, out, _err = dtdctl("jobs")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "job.epochs=2" in rows[job]
    assert "job.epochs=1" in rows[done]


def test_weights_alone_begin_at_step_0_with_any_settings(daemons, dtdctl, done):
    words = ("--set", "job.seed=9", "--set", "optimizer.name=adamw", "--set", "optimizer.lr=0.001")
    exit_code, _out, err = dtdctl("submit", str(daemons.file), "--resume-from", done, *words)
    assert exit_code == 1
    assert "job.seed = 9 (was 0)" in err
    assert 'optimizer.name = "adamw" (was "sgd")' in err
    exit_code, out, err = dtdctl("submit", str(daemons.file), "--weights-from", f"{done}@4", *words)
    assert exit_code == 0, err
    assert f"takes only the weights from {done} at step 4" in err
    waited(dtdctl, out.strip())
    assert shown(dtdctl, out.strip())["step"] == STEPS


def test_weights_of_a_file_are_shipped(daemons, dtdctl, done, tmp_path):
    daemons.await_idle()  # a worker begins afresh after a job
    exit_code, _out, err = dtdctl("fetch", done, str(tmp_path))
    assert exit_code == 0, err
    weights = tmp_path / "model.safetensors"
    submit = ("submit", str(daemons.file), "--weights-from", str(weights))
    exit_code, out, err = dtdctl(*submit, "--set", "optimizer.lr=0", "--wait")
    assert exit_code == 0, err
    assert f"takes only the weights from {weights}" in err
    learned, kept = shown(dtdctl, done)["result"], shown(dtdctl, out.strip())["result"]
    assert kept["eval_accuracy"] == learned["eval_accuracy"]
    assert kept["eval_loss"] == pytest.approx(learned["eval_loss"], rel=1e-5)
    narrow = ("--set", "task.hidden=16")
    exit_code, _out, err = dtdctl(*submit, *narrow, "--wait")
    assert exit_code == 4
    assert "do not fit" in err
    assert "in the model" in err
    weights.write_bytes(b"PK no weights")
    exit_code, _out, err = dtdctl(*submit)
    assert exit_code == 2
    assert "is not a safetensors file" in err


def test_a_cancelled_job_is_resumed(daemons, dtdctl):
    gates = daemons.hold(20)
    job = daemons.submit(gates=gates)
    daemons.until(job, lambda: daemons.step(job) >= 10)
    exit_code, _out, err = dtdctl("cancel", job)
    assert exit_code == 0, err
    gates.open(0)
    assert daemons.wait(job)["state"] == "cancelled"
    exit_code, out, err = dtdctl("resume", job)
    assert exit_code == 0, err
    waited(dtdctl, out.strip())
    known = shown(dtdctl, out.strip())
    assert known["state"] == "done"
    assert (known["result"]["rows_missing"], known["result"]["rows_repeated"]) == (0, 0)
    assert known["from_job"] == job


def test_a_job_waits_for_what_it_is_to_start_from(daemons, dtdctl, done):
    """Its only holder is away; a worker that has nothing does not begin at step 0."""
    holders = {one["worker"] for one in shown(dtdctl, done)["checkpoints"]}
    assert holders == {"worker-0"}
    daemons.child("worker-0").signal_group(signal.SIGKILL)
    daemons.child("worker-0").wait(30.0)
    words = ("--resume-from", done, "--set", "job.epochs=2")
    exit_code, out, err = dtdctl("submit", str(daemons.file), *words)
    assert exit_code == 0, err
    job = out.strip()
    waits = f"waiting for workers that have the checkpoint of step {STEPS} of {done}"
    daemons.await_event("job_waiting", waits, job=job)
    exit_code, out, _err = dtdctl("status")
    assert exit_code == 4
    assert "`dtdctl resume" in " ".join(out.split())
    daemons.start_worker("worker-0")
    waited(dtdctl, job)
    assert shown(dtdctl, job)["step"] == 2 * STEPS
    assert f"state of step {STEPS} from worker-0" in "".join(
        one["message"] for one in daemons.events("generation_forming", job)
    )


def test_checkpoints_and_jobs_are_deleted_from_disks(daemons, dtdctl, done):
    daemons.await_idle()  # a worker begins afresh after a job, and would delete later
    directories = {
        one["step"]: Path(one["directory"]) for one in shown(dtdctl, done)["checkpoints"]
    }
    exit_code, _out, err = dtdctl("delete", f"{done}@2")
    assert exit_code == 2
    assert "--yes" in err
    assert directories[2].is_dir()
    exit_code, out, err = dtdctl("delete", f"{done}@2", "--yes", "-o", "json")
    assert exit_code == 0, err
    assert [one["outcome"] for one in json.loads(out)["checkpoints"]] == ["deleted"]
    assert {step: path.is_dir() for step, path in directories.items()} == {
        2: False,
        4: True,
        6: True,
    }
    exit_code, _out, err = dtdctl("delete", done, "--yes")
    assert exit_code == 0, err
    assert not directories[6].parent.exists()
    assert dtdctl("show", done)[0] == 1
    _exit_code, out, _err = dtdctl("jobs", "-o", "json")
    assert done not in {job["id"] for job in json.loads(out)["jobs"]}
