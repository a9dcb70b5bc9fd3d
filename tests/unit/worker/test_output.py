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

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES
from dtd.worker import output as job_lines
from dtd.worker.output import (
    MAX_LINE_CHARACTERS,
    MAX_UNLOGGED_LINES,
    MAX_WAITING_LINES,
    SLICE_S,
    JobLines,
)

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


@pytest.fixture
def lines(log, sent):
    return JobLines(lambda message, payload: sent.append((message, payload)), log.clock)


def numbers(first, count):
    return [str(number) for number in range(first, first + count)]


async def logged(log, count):
    """Give the loop its turns until so many lines are logged; how many there were after each."""
    turns = [len(log.lines)]
    async with asyncio.timeout(PATIENCE_S):
        while len(log.lines) < count:
            await asyncio.sleep(0)
            turns.append(len(log.lines))
    return turns


def test_lines_go_out_together_and_once(lines, log, sent):
    lines.tell("digits-1", 2, [])
    lines.tell("digits-1", 2, ["one", "zwei é \ud800"])
    lines.tell("digits-1", 2, [])
    assert sent == [(m.JobOutput(job="digits-1", rank=2), "one\nzwei é ?".encode())]
    assert log.lines == ["one", "zwei é \ud800"]


@pytest.mark.parametrize("letter", ["x", "é", "\u2713"])
def test_more_than_a_frame_holds_is_sent_in_several_of_whole_lines(lines, log, sent, letter):
    texts = [f"{number:04}" + letter * 4092 for number in range(1000)]
    lines.tell("digits-1", 0, texts)
    payloads = [payload for _, payload in sent]
    assert max(map(len, payloads)) <= DEFAULT_MAX_PAYLOAD_BYTES
    assert [line for one in payloads for line in one.decode().split("\n")] == texts
    assert log.lines == texts


async def test_all_is_sent_at_once_and_logged_in_slices(lines, log, sent):
    log.cost_s = SLICE_S / 8
    texts = numbers(0, MAX_WAITING_LINES)
    lines.tell("digits-1", 0, texts)
    assert sent == [(m.JobOutput(job="digits-1", rank=0), "\n".join(texts).encode())]
    turns = await logged(log, len(texts))
    in_a_turn = [after - before for before, after in zip([0, *turns], turns, strict=False)]
    assert max(in_a_turn) == 8
    assert log.lines == texts


async def test_a_line_that_takes_longer_than_a_slice_is_logged_alone(lines, log):
    log.cost_s = 10 * SLICE_S
    lines.tell("digits-1", 0, ["one", "two", "three"])
    assert log.lines == ["one"]
    await logged(log, 3)
    assert log.lines == ["one", "two", "three"]


async def test_what_is_printed_meanwhile_comes_after(lines, log):
    log.cost_s = SLICE_S
    for first in (0, 50):
        lines.tell("digits-1", 0, numbers(first, 50))
        await logged(log, first + 3)
    await logged(log, 100)
    lines.tell("digits-1", 0, numbers(100, 2))  # and again, when all was logged
    await logged(log, 102)
    assert log.lines == numbers(0, 102)


async def test_of_what_is_to_be_logged_the_newest_are_kept(lines, log):
    log.cost_s = SLICE_S
    batches = MAX_UNLOGGED_LINES // MAX_WAITING_LINES + 2
    for batch in range(batches):
        lines.tell("digits-1", 0, numbers(batch * MAX_WAITING_LINES, MAX_WAITING_LINES))
    await logged(log, 1 + MAX_UNLOGGED_LINES)
    newest = numbers(2 * MAX_WAITING_LINES, MAX_UNLOGGED_LINES)
    assert log.lines == ["0", *newest]


def test_nothing_is_lost_when_the_process_ends(lines, log):
    log.cost_s = SLICE_S
    texts = numbers(0, 100)

    async def prints_and_ends():
        lines.tell("digits-1", 0, texts)

    asyncio.run(prints_and_ends())
    assert log.lines == texts
