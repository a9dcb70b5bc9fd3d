"""The process of a worker: its interpreter, and its state as it was before a job changed it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dtd.worker import __main__ as program
from dtd.worker.process import process_state

CHANGES = {
    "nothing": "",
    "what can be restored": """
os.chdir("/")
os.umask(0o777)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
signal.setitimer(signal.ITIMER_REAL, 3600)
""",
    "a hard limit": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "the niceness": "os.nice(1)",
    "the directory itself": "os.rmdir(os.getcwd())",
}
PROGRAM = """
import json, os, resource, signal, sys
from dtd.worker.process.process_state import ProcessState

if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)  # root restores everything
os.mkdir(sys.argv[1])
os.chdir(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
begun = ProcessState()
os.environ["LATER"] = "set by a job"
opened = os.open("/", os.O_RDONLY)
os.set_inheritable(opened, True)
"""
AFTERWARDS = """
lost = begun.restore()
umask = os.umask(0)
print(json.dumps({
    "lost": lost,
    "LATER": begun.environment.get("LATER"),
    "inherited": [opened for opened in (1, 2, opened) if os.get_inheritable(opened)],
    "timer": signal.getitimer(signal.ITIMER_REAL)[0],
    "umask": umask,
    "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
    "affinity": sorted(os.sched_getaffinity(0)),
    "directory": None if lost else os.getcwd(),
}))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory in which another user can work; pytest's own are for its user alone."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def after(change: str, directory: Path) -> dict[str, Any]:
    """The view of a process that has made a change and restored its state."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + CHANGES[change] + AFTERWARDS, change],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=directory,
    )
    return dict(json.loads(done.stdout))


def test_what_a_job_has_changed_is_restored(place: Path) -> None:
    found = after("what can be restored", place)
    umask = os.umask(0)
    os.umask(umask)
    assert found == {
        "lost": [],
        "LATER": None,
        "inherited": [1, 2],
        "timer": 0.0,
        "umask": umask,
        "limit": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "directory": str(place / "what can be restored"),
    }


FORKING = """
import asyncio, multiprocessing, os, signal
import uvloop
from dtd.worker.process.process_state import free_forked_children

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" has it ignored
free_forked_children()
fork = multiprocessing.get_context("fork")

def waits():
    os.write(begins, b"!")
    signal.pause()

def ends(target, number, begun=None):
    helper = fork.Process(target=target)
    helper.start()
    if begun is not None:
        os.read(begun, 1)
    os.kill(helper.pid, number)
    helper.join(20)
    helper.kill()
    helper.join()
    return helper.exitcode

def helpers():
    for _ in range(30):
        codes.add(ends(signal.pause, signal.SIGTERM))  # the earliest possible
    codes.add(ends(waits, signal.SIGINT, begun))
    return signal.pthread_sigmask(signal.SIG_BLOCK, ())

async def main():
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    mask = await loop.run_in_executor(None, helpers)
    for _ in range(3):
        await asyncio.sleep(0)
    before = told.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    await told.wait()
    print(before, sorted(codes), mask)

codes = set()
begun, begins = os.pipe()
uvloop.run(main())
"""


def test_signals_to_forked_children_do_not_reach_the_event_loop() -> None:
    command = [sys.executable, "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    # SIGINT raises KeyboardInterrupt there, which multiprocessing turns into 1.
    assert done.stdout == "False [-15, 1] set()\n", done.stderr


WORKER = """
import json, os, sys

def main(given):
    print(json.dumps({
        "given": given,
        "randomised": sys.flags.hash_randomization,
        "seed": os.environ["PYTHONHASHSEED"],
        "safe": sys.flags.safe_path,
        "path": os.environ.get("PYTHONPATH"),
        "file": __file__,
    }))
    return 7
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with a package dtd whose worker tells in which interpreter it runs."""
    worker = tmp_path / "checkout" / "dtd" / "worker"
    (worker / "process").mkdir(parents=True)
    for package in (worker.parent, worker, worker / "process"):
        (package / "__init__.py").touch()
    shutil.copy(program.__file__, worker)
    shutil.copy(process_state.__file__, worker / "process")
    (worker / "main.py").write_text(WORKER)
    return worker.parents[1]


def told(directory: Path, **variables: str) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-m", "dtd.worker", "--name", "a b"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=directory,
        env=environment | variables,
    )
    assert done.returncode == 7, done.stderr
    return dict(json.loads(done.stdout))


def test_its_interpreter_orders_sets_as_all_workers_do(checkout, tmp_path) -> None:
    path = f"{checkout}{os.pathsep}/elsewhere"
    found = told(tmp_path, PYTHONPATH=path, PYTHONHASHSEED="5")
    assert found == {
        "given": ["--name", "a b"],
        "randomised": 0,
        "seed": "0",
        "safe": True,
        "path": path,
        "file": str(checkout / "dtd/worker/main.py"),
    }


def test_in_a_checkout_that_is_installed_nowhere_it_stays_the_checkouts(checkout) -> None:
    found = told(checkout, PYTHONPATH="/elsewhere")
    assert found["path"] == f"{checkout}{os.pathsep}/elsewhere"
    assert found["file"] == str(checkout / "dtd/worker/main.py")
    assert found["safe"]
    assert told(checkout)["path"] == str(checkout)
