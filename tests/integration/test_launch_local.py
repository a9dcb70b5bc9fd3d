"""The launcher as a process: it trains, it survives deaths, and it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from dtd.ctl.settings import read_endpoint
from dtd.net import local_socket
from dtd.net.clients.control_client import ControlClient
from dtd.wire import messages as m
from scripts.cluster.cluster import REPOSITORY
from scripts.cluster.processes import Process
from scripts.cluster.processes import launch as launch_unprepared
from tests.integration.conftest import Gates

pytestmark = pytest.mark.integration

EPOCHS = 2
STEPS = 16
GATED = ("--task", "gated_task:Gated", "--epochs", str(EPOCHS), "--batch_size", "128")
TIMEOUT_S = 250
LOOK_AGAIN_S = 0.05
PEER = struct.Struct("3i")

Start = Callable[[Sequence[str], Sequence[IO[Any]], Mapping[str, str]], Process]
"""Starts a program with these standard streams for output, and with this environment."""


class Launched:
    """A running launcher, with its state directory and temporary directory under `directory`.

    Attributes:
        stderr: what it says, as it comes.
    """

    def __init__(
        self, start: Start, directory: Path, *arguments: str, stdout: IO[Any] | None = None
    ) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.runs = directory / "home" / "dtd" / "runs"
        self._out = (directory / "out").open("w+")
        read, write = os.pipe()
        self.stderr = os.fdopen(read)
        command = [sys.executable, "-m", "scripts.launch_local", *arguments]
        environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "XDG_STATE_HOME": str(directory / "home"),
            "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(Path(__file__).parent))),
        }
        with os.fdopen(write, "wb") as err:
            self.process = start(command, (stdout or self._out, err), environment)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Its exit code, stdout and what is left of its stderr."""
        err = self.stderr.read()
        exit_code = self.process.wait(TIMEOUT_S)
        self._out.seek(0)
        return exit_code, self._out.read(), err

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.stderr.close()
        self._out.close()

    def client(self) -> ControlClient:
        """A connection to the coordinator, whose address is in a line of its own."""
        line = next(line for line in self.stderr if line.startswith("coordinator at "))
        self.address = read_endpoint(line.split()[2].rstrip(","), source="launcher")
        return ControlClient(self.address, timeout_s=TIMEOUT_S)

    def coordinator(self) -> int:
        """The process id of its coordinator, once there was a client."""
        with local_socket.call(self.address, TIMEOUT_S) as connection:
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        return int(PEER.unpack(told)[0])

    def await_step(self, client: ControlClient, step: int) -> dict:
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            status = client.request(m.GetStatus())
            job = status["job"]
            if job and job["state"] == "running" and job["step"] >= step:
                return status
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(LOOK_AGAIN_S)
                break
        raise AssertionError(f"step {step} was not reached: {status}")


@pytest.fixture
def launch(tmp_path, prepared):
    """Starts launchers; whatever happens, they are gone afterwards."""
    started = []

    def start(*arguments: str, start: Start = prepared.start, **more: Any) -> Launched:
        started.append(Launched(start, tmp_path, *arguments, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def gates(tmp_path):
    """Makes gates of the task, which are open afterwards."""
    made = []

    def make(*holds):
        made.append(Gates(tmp_path / "gates", [*holds]))
        return made[0]

    yield make
    for one in made:
        one.open_all()


def stops(gates):
    """Options with which workers stop at gates."""
    return [f"--set=task.{key}={json.dumps(value)}" for key, value in gates.task.items()]


def pids_of(status):
    return [worker["pid"] for worker in status["workers"]]


def all_end(pidfds):
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    waiting = set(pidfds)
    while waiting and (ready := poll.poll(1000 * TIMEOUT_S)):
        for pidfd, _event in ready:
            waiting.discard(pidfd)
            poll.unregister(pidfd)
    for pidfd in pidfds:
        os.close(pidfd)
    return not waiting


def test_a_job_that_fails_exits_4_with_the_reason_in_one_sentence(launch):
    words = ("--num_workers", "1", "--set", "task.fails_at=2", "--json")
    exit_code, out, err = launch(*GATED, *words).end()
    assert exit_code == 4, err
    assert json.loads(out)["state"] == "failed"
    reason = json.loads(err.splitlines()[-1])["error"]
    assert "row 17 is odd" in reason
    assert "\n" not in reason
    assert "Traceback" not in reason


def test_a_daemon_that_cannot_start_shows_its_log(launch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        launched = launch(*GATED, "--listen", f"127.0.0.1:{port}")
        exit_code, out, err = launched.end()
    assert (exit_code, out) == (1, "")
    assert "while it was starting; its log ends with" in err
    assert str(port) in err
    assert list(launched.temporary.iterdir()) == []


def test_it_trains_on_when_daemons_are_killed_and_prints_one_object(launch, gates):
    """The worker first; then the coordinator, at the same address and with the same state.

    That is to be discarded, and is gone.
    """
    holds = (6, STEPS - 2)
    stand = gates(*holds)
    both = ("--num_workers", "2", "--set", "elastic.min_workers=2")
    launched = launch(*GATED, *both, *stops(stand), "--json", "--discard")
    with launched.client() as client:
        before = launched.await_step(client, holds[0] - 1)
        pids = {worker["name"]: worker["pid"] for worker in before["workers"]}
        watched = os.pidfd_open(pids["worker-1"])
        client.request(m.KillWorker(name="worker-1", signal="KILL"))
        assert all_end([watched])
        stand.open(0)
        launched.await_step(client, holds[1] - 2)
    os.kill(launched.coordinator(), signal.SIGKILL)
    stand.open(1)
    exit_code, out, err = launched.end()
    assert exit_code == 0, err
    summary = json.loads(out)
    assert out.count("\n") == 1
    assert (summary["state"], summary["world_size"], summary["epochs"]) == ("done", 2, EPOCHS)
    assert summary["steps"] == STEPS
    assert len(summary["replica_digests"]) == 2
    assert len(set(summary["replica_digests"].values())) == 1
    assert (summary["restarts"], summary["restarts_of"]) == (1, {"worker-1": 1, "coordinator": 1})
    assert (summary["steps_lost"], summary["rows_missing"], summary["rows_repeated"]) == (0, 0, 0)
    assert 0.0 <= summary["eval_accuracy"] <= 1.0
    for name in ("worker-1", "coordinator"):
        assert f"{name} was killed by SIGKILL; it is started again" in err
    assert (summary["directory"], summary["weights"]) == (None, None)
    assert not launched.runs.exists()
    assert list(launched.temporary.iterdir()) == []


def test_nothing_outlives_it_when_it_is_killed(launch):
    """It starts daemons as a user's does."""

    def start(command, streams, environment):
        return launch_unprepared(command, streams[1], environment)

    launched = launch(*GATED, "--num_workers", "1", start=start)
    with launched.client() as client:
        status = client.request(m.GetStatus())
    watched = [os.pidfd_open(pid) for pid in pids_of(status)]
    launched.signal(signal.SIGKILL)
    launched.end()
    assert all_end(watched)


def test_what_was_interrupted_goes_on_in_its_directory(launch, gates):
    """Until it is done; then the summary names the directory and the weights in it.

    Its page is served again afterwards.
    """
    stand = gates(STEPS - 4)
    job = (*GATED, "--num_workers", "1", *stops(stand))
    launched = launch(*job)
    with launched.client() as client:
        status = launched.await_step(client, STEPS - 5)
    watched = [os.pidfd_open(pid) for pid in pids_of(status)]
    launched.signal(signal.SIGINT)
    exit_code, out, err = launched.end()
    stand.open(0)
    assert all_end(watched)
    assert (exit_code, out) == (128 + signal.SIGINT, "")
    assert "Traceback" not in err
    assert list(launched.temporary.iterdir()) == []
    (directory,) = launched.runs.iterdir()
    assert f"the same command with --state-dir {directory} goes on with it" in err
    again = launch(*job, "--json", "--state-dir", str(directory))
    exit_code, out, err = again.end()
    assert exit_code == 0, err
    assert "goes on with local-1" in err
    summary = json.loads(out)
    assert (summary["job"], summary["state"], summary["steps"]) == ("local-1", "done", STEPS)
    assert (summary["rows_missing"], summary["directory"]) == (0, str(directory))
    assert Path(summary["weights"]).is_file()
    assert Path(summary["weights"]).is_relative_to(directory)

    shows = launch("--show", str(directory))
    link = next(line for line in shows.stderr if "web page" in line).rpartition(" ")[2]
    page = urllib.request.urlopen(link.partition("#")[0], timeout=TIMEOUT_S)
    assert page.status == 200
    shows.signal(signal.SIGINT)
    exit_code, _out, _err = shows.end()
    assert exit_code == 0


def test_a_run_whose_page_was_opened_serves_it_until_it_is_interrupted(launch, gates):
    stand = gates(1)
    leader, terminal = os.openpty()
    with os.fdopen(terminal, "wb") as stdout:
        launched = launch(*GATED, "--num_workers", "1", *stops(stand), stdout=stdout)
    said = launched.stderr
    link = next(line for line in said if line.startswith("web page")).rpartition(" ")[2].strip()
    url, code = link.split("/#login=")
    body = json.dumps({"word": code}).encode()
    headers = {"Content-Type": "application/json", "Origin": url}
    login = urllib.request.Request(f"{url}/api/login", body, headers)
    assert urllib.request.urlopen(login, timeout=TIMEOUT_S).status == 200
    stand.open(0)
    assert any("the web page is served until Ctrl-C" in line for line in said)
    assert urllib.request.urlopen(f"{url}/", timeout=TIMEOUT_S).status == 200
    launched.signal(signal.SIGINT)
    assert launched.end()[0] == 0
    os.close(leader)
