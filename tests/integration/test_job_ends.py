"""Jobs that end on disks that take nothing, while they wait, and by a failure: what is kept.

A disk that takes nothing is a file where the checkpoint directory is to be; room is made by taking
it away.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dtd.ctl.main import run as run_dtdctl
from dtd.wire import messages as m
from tests.integration.conftest import Daemons

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemons(start_daemons: Callable[[int], Daemons]) -> Daemons:
    """A coordinator and two workers."""
    return start_daemons(2)


@pytest.fixture
def ctl(daemons: Daemons, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs dtdctl in this process: (exit code, everything that it printed)."""

    def run(*arguments: str) -> tuple[int, str]:
        code = run_dtdctl([*arguments, "--coordinator", str(daemons.cluster.address)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def kept_steps(daemons: Daemons, job: str) -> set[int]:
    found = daemons.ask(m.ListCheckpoints(job=job))["checkpoints"]
    return {one["step"] for one in found}


def blocked(directory: Path) -> Path:
    """A checkpoint directory on which nothing can be written."""
    place = directory / "disk"
    place.write_text("")
    return place


def test_a_job_is_done_when_its_last_state_is_saved(
    daemons: Daemons, ctl: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    disk = blocked(tmp_path)
    job = daemons.submit(f'checkpoint.directory="{disk}"')
    daemons.await_event("job_saving", job=job)

    status = daemons.ask(m.GetStatus())
    assert (status["job"]["id"], status["job"]["state"]) == (job, "saving")
    assert status["job"]["step"] == status["job"]["total_steps"]
    daemons.await_event("checkpoint_failed", "worker-1", job=job)
    code, text = ctl("status")
    assert code == 4
    assert "saving" in text
    assert "cannot write" in text
    code, text = ctl("wait", job, "--timeout", "0.2")
    assert code == 1
    assert f"job {job} is saving" in text
    assert kept_steps(daemons, job) == set()

    disk.unlink()
    assert daemons.wait(job)["state"] == "done"
    assert kept_steps(daemons, job) == {status["job"]["total_steps"]}


def test_a_job_that_cannot_be_saved_can_be_cancelled(
    daemons: Daemons, ctl: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    job = daemons.submit(f'checkpoint.directory="{blocked(tmp_path)}"')
    daemons.await_event("job_saving", job=job)
    assert ctl("cancel", job)[0] == 0
    assert daemons.wait(job)["state"] == "cancelled"
    assert daemons.events("state_discarded", job)


def test_a_failure_keeps_the_last_committed_step(daemons: Daemons) -> None:
    daemons.await_idle()
    job = daemons.submit("task.fails_at=14", "checkpoint.every_steps=1000")
    ended = daemons.wait(job)
    assert ended["state"] == "failed"
    assert "row 17 is odd" in ended["reason"]
    assert kept_steps(daemons, job) == {13}


def test_cancel_while_waiting_keeps_what_the_survivor_holds(daemons: Daemons) -> None:
    daemons.await_idle()
    gates = daemons.hold(12)
    job = daemons.submit("elastic.min_workers=2", "checkpoint.every_steps=1000", gates=gates)
    daemons.until(job, lambda: daemons.step(job) >= 11)
    victim = daemons.child("worker-1")
    victim.signal_group(signal.SIGKILL)
    victim.wait(30.0)
    daemons.await_event("worker_lost", "worker-1")
    gates.open(0)
    daemons.await_event("job_waiting", "1 worker ready, 2 needed", job=job)
    daemons.ask(m.CancelJob(job=job))
    assert daemons.wait(job)["state"] == "cancelled"
    (step,) = kept_steps(daemons, job)
    assert step >= 11
    daemons.start_worker("worker-1")
    daemons.await_event("worker_registered", "worker-1")


def test_what_a_fall_back_leaves_behind_is_kept_and_listed(
    daemons: Daemons, ctl: Callable[..., tuple[int, str]]
) -> None:
    """The only holder returns when the job has begun again without it, and writes for it."""
    daemons.await_idle()
    gates = daemons.hold(12, 20)
    job = daemons.submit("checkpoint.every_steps=10", "checkpoint.keep=1", gates=gates)
    written = f"worker-*/checkpoints/{job}.*/g*-s000000010/manifest.json"
    daemons.until(job, lambda: any(daemons.directory.glob(written)))
    gates.open(0)  # it is told of with the first step after it is written
    daemons.until(job, lambda: kept_steps(daemons, job) == {10})

    for name in ("worker-0", "worker-1"):
        daemons.child(name).signal_group(signal.SIGKILL)
        daemons.child(name).wait(30.0)
    daemons.start_worker("worker-1")
    daemons.await_event("job_waiting", "waiting for worker-0", job=job)
    assert ctl("resume", job)[0] == 0
    daemons.await_event("branch_left", "step 10 stays with worker-0", job=job)
    daemons.start_worker("worker-0")
    daemons.await_event("generation_ending", "worker-0 joins", job=job)
    gates.open(1)
    assert daemons.wait(job)["state"] == "done"
    listed = daemons.ask(m.ListCheckpoints(job=job))["checkpoints"]
    mine = {one["step"]: one["left_behind"] for one in listed if one["worker"] == "worker-0"}
    assert mine == {10: True, 32: False}
    assert f"--resume-from {job}@10" in ctl("checkpoints", job)[1]
