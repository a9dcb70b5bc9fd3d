"""The launcher as a process: it trains, it survives deaths, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dtd.ctl.settings import read_address
from dtd.net.control_client import ControlClient
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

SHORT = ("--task", "digits", "--num_workers", "2", "--epochs", "1", "--batch_size", "256")
# Enough steps to be interrupted in the middle of.
LONG = ("--task", "digits", "--num_workers", "2", "--epochs", "100000", "--batch_size", "64")
TIMEOUT_S = 100


class Launched:
    """A running launcher, with its state directory and temporary directory under `directory`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.state = directory / "state"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.launch_local", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.temporary)},
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err

    def address(self) -> str:
        """The coordinator's address, from the line that says so."""
        line = next(line for line in self.process.stderr if line.startswith("coordinator at "))
        return line.split()[2].rstrip(",")

    def child(self, module: str) -> int:
        """The process id of one of its daemons."""
        (found,) = (
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if child.status() != psutil.STATUS_ZOMBIE and module in child.cmdline()
        )
        return int(found)

    def await_step(self, client: ControlClient, step: int) -> dict:
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            status = client.request(m.GetStatus())
            if (
                status["job"]
                and status["job"]["state"] == "running"
                and status["job"]["step"] >= step
            ):
                return status
        raise AssertionError(f"step {step} was not reached: {status}")


@pytest.fixture
def launch(tmp_path):
    """Starts launchers; whatever happens, they are gone afterwards."""
    started = []

    def start(*arguments: str) -> Launched:
        started.append(Launched(tmp_path, *arguments))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            one.process.kill()
        one.process.communicate()


def pids_of(status):
    return [worker["pid"] for worker in status["workers"]]


def all_end(pidfds):
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    waiting = set(pidfds)
    while waiting and (ready := poll.poll(10_000)):
        for pidfd, _event in ready:
            waiting.discard(pidfd)
            poll.unregister(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)
    return not waiting


def test_it_trains_and_prints_one_object(launch):
    launched = launch(*SHORT, "--json", "--set", "job.seed=3")
    exit_code, out, err = launched.end()
    assert exit_code == 0, err
    summary = json.loads(out)
    assert out.count("\n") == 1
    assert (summary["state"], summary["world_size"], summary["epochs"]) == ("done", 2, 1)
    assert summary["steps"] == 6
    assert len(summary["replica_digests"]) == 2
    assert len(set(summary["replica_digests"].values())) == 1
    assert (summary["steps_lost"], summary["rows_missing"], summary["rows_repeated"]) == (0, 0, 0)
    assert summary["restarts"] == 0
    assert 0.0 <= summary["eval_accuracy"] <= 1.0
    assert list(launched.temporary.iterdir()) == []


def test_a_job_that_fails_exits_4_with_the_reason(launch):
    exit_code, out, err = launch(*SHORT, "--set", "task.hidden=-5", "--json").end()
    assert exit_code == 4
    assert json.loads(out)["state"] == "failed"
    assert "Traceback" not in err.splitlines()[-1]
    assert "hidden" in err


def test_a_daemon_that_cannot_start_shows_its_log(launch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launched = launch(*SHORT, "--listen", f"127.0.0.1:{port}")
        exit_code, out, err = launched.end()
    assert (exit_code, out) == (1, "")
    assert "while it was starting; its log ends with" in err
    assert str(port) in err
    assert list(launched.temporary.iterdir()) == []


def test_killed_daemons_come_back_and_nothing_is_lost(launch):
    """The worker first; then the coordinator, at the same address and with the same state."""
    launched = launch(*SHORT[:-4], "--epochs", "40", "--batch_size", "64", "--json")
    with ControlClient(read_address(launched.address(), source="launcher")) as client:
        launched.await_step(client, 5)
        client.request(m.KillWorker(name="worker-1", signal="KILL"))
        launched.await_step(client, 20)
    coordinator = launched.child("dtd.coordinator.main")
    os.kill(coordinator, signal.SIGKILL)
    exit_code, out, err = launched.end()
    assert exit_code == 0, err
    summary = json.loads(out)
    assert (summary["restarts"], summary["restarts_of"]) == (1, {"worker-1": 1, "coordinator": 1})
    assert (summary["steps_lost"], summary["rows_missing"], summary["rows_repeated"]) == (0, 0, 0)
    for name in ("worker-1", "coordinator"):
        assert f"{name} was killed by SIGKILL; it is started again" in err


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGTERM, 1), (signal.SIGINT, 0), (signal.SIGKILL, 0)]
)
def test_nothing_outlives_it_while_it_trains_or_warms_up(launch, number, step):
    launched = launch(*LONG)
    address = read_address(launched.address(), source="launcher")
    with ControlClient(address) as client:
        status = launched.await_step(client, step) if step else client.request(m.GetStatus())
    watched = [os.pidfd_open(pid) for pid in pids_of(status)]
    launched.process.send_signal(number)
    exit_code, out, err = launched.end()
    assert all_end(watched)
    if number is not signal.SIGKILL:
        assert (exit_code, out) == (128 + number, "")
        assert "Traceback" not in err
        assert list(launched.temporary.iterdir()) == []
