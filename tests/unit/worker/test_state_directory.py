"""One process at a time in a state directory, and who it is."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtd.worker.process.state_directory import HANDED_OVER, StateDirectory

OPEN = """
import os, sys
from pathlib import Path
from dtd.errors import ConfigError
from dtd.worker.process.state_directory import StateDirectory
try:
    made = StateDirectory(Path(sys.argv[1]), os.environ, sleep=lambda _s: None)
except ConfigError as error:
    sys.exit(f"{error.exit_code} {error}")
print(made.instance, flush=True)
"""


def in_another_process(path: Path, then: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OPEN + then, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    first = StateDirectory(tmp_path / "state", {})
    second = in_another_process(tmp_path / "state")
    assert second.stderr.startswith("78 another worker uses the state directory")
    assert "--state-dir" in second.stderr
    first.close()
    third = in_another_process(tmp_path / "state")
    assert third.stdout.strip() == first.instance  # the lock went with the process, the id stays


def test_children_do_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    fork = "\nif os.fork() == 0:\n    os.read(0, 1)\n    os._exit(0)\nos._exit(0)\n"
    command = [sys.executable, "-c", OPEN + fork, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert parent.wait(60) == 0
        StateDirectory(tmp_path, {}, sleep=lambda _s: pytest.fail("it is locked")).close()
        parent.communicate()


def test_a_process_that_replaces_itself_keeps_the_lock(tmp_path: Path) -> None:
    again = (
        "\nimport subprocess"
        "\nif len(sys.argv) == 2:"
        "\n    further = made.hand_over()"
        "\n    again = [sys.executable, '-c', os.environ['CODE'], sys.argv[1], 'x']"
        "\n    os.execve(sys.executable, again, os.environ | further)"
        "\nprint(os.environ.get('DTD_STATE_LOCK_FD', ''), os.get_inheritable(made._lock))"
        "\nother = [sys.executable, '-c', os.environ['FIRST'], sys.argv[1]]"
        "\nprint(subprocess.run(other, capture_output=True, text=True).stderr[:27])"
    )
    code = OPEN + again
    environ = {**os.environ, "CODE": code, "FIRST": OPEN}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    first, second, inherited, refused = done.stdout.splitlines()
    assert first == second
    assert inherited == " False"
    assert refused == "78 another worker uses the "


@pytest.mark.parametrize("said", ["", "x", "99999", "1" * 30, "0"])
def test_a_descriptor_that_is_not_the_locks_is_not_taken(tmp_path: Path, said: str) -> None:
    environ = {HANDED_OVER: said}
    made = StateDirectory(tmp_path, environ)
    assert environ == {}
    assert os.fstat(made._lock).st_ino == (tmp_path / "lock").stat().st_ino
    made.close()


def test_where_there_are_no_locks_equal_ids_prove_nothing(tmp_path, monkeypatch) -> None:
    def lacking(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lacking)
    one, other = StateDirectory(tmp_path, {}), StateDirectory(tmp_path, {})
    assert one.instance != other.instance
    for made in (one, other):
        made.close()
