"""A job's output becomes lines, whichever process prints it, and the coordinator is sent them."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import textwrap

import pytest

from dtd.worker.job import output as job_lines

PATIENCE_S = 60.0
BUFFERED = {"PYTHONUNBUFFERED": ""}

PROGRAM = """
import json, os, subprocess, sys, threading
own = os.dup(1)
from dtd.worker.job.output import MAX_LINE_CHARACTERS, OutputPipe, flush_output
pipe = OutputPipe()
def taken():
    flush_output()
    pipe.read_all()
    return pipe.take(ended=True)
def read():
    with pipe._lock:
        pipe._read()
    return pipe.take()
lines = []
{body}
os.write(own, json.dumps(lines).encode())
os._exit(0)
"""


def printed(body, **options):
    """`lines` of a program that is like a worker's process in a job."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=textwrap.dedent(body))],
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
        **{"env": os.environ | BUFFERED, **options},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_all_that_prints_is_heard_in_its_order_whatever_the_locale():
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert printed(
        """
        import ctypes
        print("out", 1)
        print("error", file=sys.stderr)
        print("a", "b", sep="\\n")
        print()
        sys.stdout.buffer.write(b"raw \\xff\\n")
        print(sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.encoding)
        print("\\u2713 \\u640d \\ud800")
        flush_output()
        os.write(1, b"by number\\n")
        subprocess.run(["sh", "-c", "echo child; echo its error >&2"])
        subprocess.run(["echo", "to a file"], stdout=sys.stdout)
        ctypes.CDLL(None).puts(b"puts")
        print("then")
        ctypes.CDLL(None).printf(b"printf")
        lines = taken()
        """,
        env=os.environ | BUFFERED | plain,
    ) == [
        *["out 1", "error", "a", "b", "", "raw \\xff", "1 2 False utf-8"],
        *["\u2713 \u640d \\ud800", "by number", "child", "its error", "to a file"],
        *["puts", "then", "printf"],
    ]


@pytest.mark.parametrize(
    "broken",
    [
        "sys.stdout = sys.stderr = object()",
        "sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)",
        "pipe._read(); os.closerange(own + 1, 256)",
    ],
)
def test_what_a_job_does_to_its_streams_harms_nobody_else(broken):
    assert printed(f"print('before'); {broken}; lines = taken()") == ["before"]


def test_a_child_that_outlives_the_process_does_not_hold_it():
    """It finds nobody who reads, as a script's child does behind a pager that has ended."""
    read, write = os.pipe()
    body = f"""
        child = subprocess.Popen(["sh", "-c", "read go <&{read}; exec yes"], pass_fds=[{read}])
        lines = [child.pid]
    """
    (pid,) = printed(body, pass_fds=[read])
    with os.fdopen(os.pidfd_open(pid)) as child, os.fdopen(write, "w") as go:
        go.write("go\n")
        go.flush()
        os.close(read)
        assert select.select([child], [], [], PATIENCE_S)[0]


class SlowLog:
    """A log that takes its time, on a clock of its own."""

    def __init__(self):
        self.cost_s = 0.0
        self.now_s = 0.0
        self.lines = []

    def info(self, event, *, line):
        assert event == "job_output"
        self.now_s += self.cost_s
        self.lines.append(line)

    def clock(self):
        return self.now_s


@pytest.fixture
def log(monkeypatch):
    made = SlowLog()
    monkeypatch.setattr(job_lines, "log", made)
    return made


@pytest.fixture
def sent():
    return []


async def logged(log, count):
    """Give the loop its turns until so many lines are logged; how many there were after each."""
    turns = [len(log.lines)]
    async with asyncio.timeout(PATIENCE_S):
        while len(log.lines) < count:
            await asyncio.sleep(0)
            turns.append(len(log.lines))
    return turns
