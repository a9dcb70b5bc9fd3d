"""Children of the launcher: their log, their end, and that none outlives it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from scripts.cluster.processes import Child, stop_all


@pytest.fixture
def child(tmp_path):
    """Makes children from Python text; all are gone afterwards."""
    made = []

    def make(text, name="daemon"):
        made.append(Child(name, (sys.executable, "-c", text), tmp_path / f"{name}.log"))
        return made[-1]

    yield make
    for one in made:
        if one.started:
            one.signal_group(signal.SIGKILL)
            one.wait(30)


def ends(pidfd):
    """Whether the process behind a pidfd ends within some seconds."""
    try:
        return bool(select.select([pidfd], [], [], 10)[0])
    finally:
        os.close(pidfd)


def test_stop_ends_those_that_listen_those_that_do_not_and_those_that_are_stopped(child, tmp_path):
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    says = f"import os, signal; fifo = os.open({str(ready)!r}, os.O_WRONLY);"
    listens = child(says + "os.write(fifo, b'x'); signal.pause()", "listens")
    deaf = child(
        says + "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(fifo, b'x');"
        "[signal.pause() for _ in iter(int, 1)]",
        "deaf",
    )
    stopped = child(
        says + "os.write(fifo, b'x'); os.kill(os.getpid(), signal.SIGSTOP); signal.pause()",
        "stopped",
    )
    never = child("", "never")
    for one in (listens, deaf, stopped):
        one.start()
        with ready.open("rb") as fifo:
            assert fifo.read(1) == b"x"
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
    stop_all([listens, deaf, stopped, never], grace_s=0.2)
    assert [one.exit_code() for one in (listens, deaf, stopped)] == [-15, -9, -15]


def test_children_die_with_a_launcher_that_is_killed(tmp_path):
    program = (
        "import signal, sys; from pathlib import Path\n"
        "from scripts.cluster.processes import Child\n"
        "sleeps = (sys.executable, '-c', 'import signal; signal.pause()')\n"
        f"one = Child('one', sleeps, Path({str(tmp_path / 'log')!r}))\n"
        "one.start(); print(one.pid, flush=True); signal.pause()"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with launcher:
        watch = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
    assert ends(watch)
