"""How the last process of a worker has ended is told once, in bounded words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dtd.worker.process import last_end
from dtd.worker.process.last_end import FAULT_FILE, LastEnd, how_it_ended

SEGMENTATION_FAULT = """Fatal Python error: Segmentation fault

Thread 0x00007f01 [asyncio] (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select

Current thread 0x00007f02 [trainer] (most recent call first):
  Garbage-collecting
  File "/srv/job/task.py", line 31 in loss
  File "/opt/dtd/lib/dtd/train/step.py", line 90 in contribute
"""


@pytest.mark.parametrize(
    ("fault", "service", "words"),
    [
        (
            SEGMENTATION_FAULT,
            "core-dump dumped SEGV",
            "ended by SIGSEGV (systemd: core-dump) in loss (task.py:31)",
        ),
        (
            "Fatal Python error: RuntimeError: no\n",
            "exit-code exited 1",
            "ended by RuntimeError: no",
        ),
        ("", "watchdog dumped ABRT", "ended by SIGABRT (systemd: watchdog)"),
        (
            "Fatal Python error: Aborted\n\n" + SEGMENTATION_FAULT,
            "watchdog dumped SEGV",
            "ended by SIGABRT (systemd: watchdog) in loss (task.py:31)",
        ),
        (
            "Fatal Python error: RuntimeError: no\n",
            "signal killed KILL",
            "ended by SIGKILL (systemd: signal)",
        ),
        ("", "exit-code exited 3", "ended with exit status 3"),
    ],
)
def test_what_the_traces_say(fault, service, words):
    assert how_it_ended(fault, service) == words


LIVE = """
import os, signal, sys
from pathlib import Path
from dtd.worker.process.last_end import LastEnd
one = LastEnd(Path(sys.argv[1]))
one.begin()
{deed}
"""


def live_and_die(directory: Path, deed: str) -> None:
    script = LIVE.format(deed=deed)
    subprocess.run(
        [sys.executable, "-c", script, str(directory)], check=False, capture_output=True, timeout=60
    )


@pytest.fixture
def told(tmp_path, monkeypatch):
    """The next process's report; without taking the test's own fault handler."""
    monkeypatch.setattr(last_end.faulthandler, "enable", lambda *_: None)

    def tell() -> str:
        following = LastEnd(tmp_path)
        following.begin()
        following.end()
        return following.told

    return tell


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("def at_fault():\n  os.kill(os.getpid(), signal.SIGSEGV)\nat_fault()", "SIGSEGV in at_f"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended without a message"),
        ("one.failed(ValueError('x'))", "ended by ValueError: x"),
        ("import io; sys.stderr = io.StringIO(); one.end(); print('over'); os._exit(3)", ""),
    ],
)
def test_a_process_that_ended_is_told_of_once(tmp_path, told, deed, words):
    live_and_die(tmp_path, deed)
    said = told()
    assert words in said
    assert bool(said) is bool(words)
    assert told() == ""
    assert not list(tmp_path.iterdir())


def test_what_is_told_is_bounded_and_printable(tmp_path, told):
    live_and_die(tmp_path, "os._exit(1)")
    (tmp_path / FAULT_FILE).write_text("Fatal Python error: \x1b[31m" + "x" * 100_000 + "\n")
    said = told()
    assert len(said) <= 255
    assert "\x1b" not in said
