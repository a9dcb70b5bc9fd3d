"""A job's output becomes lines, whichever process prints it and however."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import textwrap

import pytest

from dtd.worker.output import MAX_LINE_CHARACTERS, MAX_WAITING_LINES

PATIENCE_S = 60.0
BUFFERED = {"PYTHONUNBUFFERED": ""}

PROGRAM = """
import json, os, subprocess, sys, threading
own = os.dup(1)
from dtd.worker.output import MAX_LINE_CHARACTERS, OutputPipe, flush_output
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


def test_both_streams_are_heard_in_their_order():
    assert printed("""
        print("out", 1)
        print("error", file=sys.stderr)
        print("a", "b", sep="\\n")
        print()
        lines = taken()
    """) == ["out 1", "error", "a", "b", ""]


def test_a_line_is_heard_when_it_is_complete_or_the_job_ends():
    assert printed("""
        os.write(1, b"one")
        lines.append(read())
        os.write(1, b" and\\ntw")
        lines.append(read())
        lines.append(taken())
        lines.append(taken())
    """) == [[], ["one and"], ["tw"], []]


def test_they_are_files_with_an_encoding():
    assert printed("""
        import faulthandler
        sys.stdout.buffer.write(b"raw \\xff\\n")
        print(sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.writable())
        print(sys.stdout.encoding, "\\u2713 \\u640d\\u5931 \\ud800")
        sys.stdout.reconfigure(line_buffering=True)
        faulthandler.enable()
        os.write(1, b"by number\\n")
        lines = taken()
    """) == [
        "raw \\xff",
        "1 2 False True",
        "utf-8 \u2713 \u640d\u5931 \\ud800",
        "by number",
    ]


def test_the_locale_does_not_matter():
    environ = {
        **os.environ,
        **BUFFERED,
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
    }
    assert printed(r"print('\u2713'); lines = taken()", env=environ) == ["\u2713"]


def test_children_and_c_are_heard():
    assert printed("""
        import ctypes
        subprocess.run(["sh", "-c", "echo child; echo its error >&2"])
        subprocess.run(["echo", "to a file"], stdout=sys.stdout)
        ctypes.CDLL(None).puts(b"puts")
        print("then")
        ctypes.CDLL(None).printf(b"printf")
        lines = taken()
    """) == ["child", "its error", "to a file", "puts", "then", "printf"]


def test_a_character_in_two_writes_is_one():
    assert printed("""
        os.write(1, b"\\xe2\\x9c")
        lines.append(read())
        os.write(1, b"\\x93\\n")
        lines.append(read())
    """) == [[], ["\u2713"]]


def test_an_over_long_line_is_cut():
    found = printed("""
        sys.stdout.write("x" * (MAX_LINE_CHARACTERS + 1) + "\\n")
        sys.stdout.write("y" * MAX_LINE_CHARACTERS + "\\n")
        lines = taken()
    """)
    assert found == ["x" * MAX_LINE_CHARACTERS, "y" * MAX_LINE_CHARACTERS]


def test_a_line_without_an_end_does_not_grow_for_ever():
    assert printed("""
        for _ in range(3 * MAX_LINE_CHARACTERS):
            os.write(1, b"z")
            lines += read()
        lines = [len(lines), len(pipe._rest) <= MAX_LINE_CHARACTERS]
    """) == [2, True]


def test_a_flood_is_read_without_being_asked_for_and_its_newest_lines_are_kept():
    found = printed("""
        subprocess.run(["seq", "200000"])
        print("last")
        lines = taken()
    """)
    dropped = 200001 - MAX_WAITING_LINES
    assert found[0] == f"... {dropped} lines dropped: printed faster than they are read"
    assert len(found) == 1 + MAX_WAITING_LINES
    assert found[-2:] == ["200000", "last"]


def test_a_lot_in_one_piece_does_not_wait_for_the_reader():
    """As code in C that prints keeps all other threads from running."""
    found = printed("""
        import ctypes
        text = 2 ** 13 * (63 * b"c" + b"\\n")
        ctypes.PyDLL(None).write(1, text, len(text))
        lines = taken()
    """)
    assert found[1:] == MAX_WAITING_LINES * [63 * "c"]


def test_lines_of_many_threads_stay_whole():
    found = printed("""
        def work(number):
            for _ in range(200):
                sys.stdout.write(f"thread {number}\\n")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        lines = taken()
    """)
    assert sorted(found) == sorted(f"thread {number}" for number in range(4) for _ in range(200))


@pytest.mark.parametrize(
    "broken",
    [
        "sys.stdout = sys.stderr = None",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = object()",
        "os.close(1); os.close(2)",
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
