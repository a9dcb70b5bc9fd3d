"""Processes from prepared interpreters end, die and hand over as others do."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fork_client import ForkedProcess, ForkServer

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
# A worker for the purposes of the fork server; it replaces itself once.  Until then its threads may
# use what it has, and afterwards its address is free.
PROGRAM = """
import os, signal, socket, sys
what = sys.argv[1]
print(what, os.getpid(), flush=True)
place = socket.socket(socket.AF_UNIX)
place.bind("\\0" + os.getcwd())
os.set_inheritable(place.fileno(), True)
if what == "replaces" and not os.path.exists("replaced"):
    os.mkdir("replaced")
    execv = os.execv
    def replace(*arguments):
        os.fstat(place.fileno())
        execv(*arguments)
    os.execv = replace
    again = [sys.executable, "-P", "-m", "dtd.worker", *sys.argv[1:]]
    os.execve(sys.executable, again, os.environ)
if what == "raises":
    raise RuntimeError("in a forked process")
if what == "waits":
    signal.pause()
sys.exit(7)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    made = ForkServer(())
    yield made
    made.close()


@pytest.fixture
def start(server, tmp_path):
    """Starts the program; its process and what it has printed so far."""
    module = tmp_path / "dtd" / "worker"
    module.mkdir(parents=True)
    for package in (module.parent, module):
        (package / "__init__.py").touch()
    (module / "__main__.py").write_text(PROGRAM)
    printed = tmp_path / "printed"
    started = []

    def begin(*arguments: str) -> ForkedProcess:
        with printed.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), log.fileno(), log.fileno()]
            environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
            started.append(
                server.start(
                    "dtd.worker",
                    arguments,
                    streams=streams,
                    environment=environment,
                    directory=str(tmp_path),
                    network="/proc/self/ns/net",
                )
            )
        return started[-1]

    begin.printed = printed.read_text
    yield begin
    for one in started:
        if one.poll() is None:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait(PATIENCE_S)


def until_it_says(start, process: ForkedProcess, word: str) -> None:
    while word not in start.printed():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)


def test_it_is_a_child_in_a_session_of_its_own_with_an_exit_code(start):
    process = start("ends")
    assert process.wait(PATIENCE_S) == process.poll() == 7
    assert start.printed() == f"ends {process.pid}\n"
    process = start("raises")
    assert process.wait(PATIENCE_S) == 1
    assert "RuntimeError: in a forked process" in start.printed()


def test_it_can_be_killed(start):
    process = start("waits")
    until_it_says(start, process, "waits")
    assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_it_ends_as_the_one_does_that_takes_its_place(start):
    process = start("replaces")
    assert process.wait(PATIENCE_S) == 7
    first, second = (line.split() for line in start.printed().splitlines())
    assert first == ["replaces", str(process.pid)]
    assert second[0] == "replaces"
    assert second[1] != first[1]


def test_it_dies_with_its_parent(tmp_path):
    """The parent is killed; nobody is left to end it."""
    program = (
        "import os, sys\n"
        "from tests.integration.fork_client import ForkServers\n"
        "log = open(os.devnull, 'wb')\n"
        "command = [sys.executable, '-m', 'dtd.coordinator.main', '--state-dir', sys.argv[1]]\n"
        "print(ForkServers().launch(command, log, os.environ).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        assert select.select([pidfd], [], [], 0)[0] == []
        parent.kill()
    assert select.select([pidfd], [], [], PATIENCE_S)[0] == [pidfd]
    os.close(pidfd)
