"""What moves in a process, seen from its event loop's thread: real threads, processes and pipes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from dtd.cluster.motion import motion
from dtd.worker.evidence import EvidenceHandler

LONG_S = 60.0
"""For what is waited for; it comes at once."""

APART_S = 0.25
"""Two looks follow each other as two heartbeats do, at least."""


@pytest.fixture
def start():
    """Runs functions in threads, which end when the test does: each is given the event for that."""
    over, threads = threading.Event(), []

    def run(function):
        thread = threading.Thread(target=function, args=(over,), daemon=True)
        thread.start()
        threads.append(thread)
        return thread

    yield run
    over.set()
    for thread in threads:
        thread.join(LONG_S)


def closely(desk):
    return desk.closely(desk.glance(), gpu_use=-1.0)


def later(desk, first):
    """A second look, so much later."""
    while (seen := closely(desk)).at_s - first.at_s < APART_S:
        pass
    return seen


def until_it_moves(desk, words):
    """Look again and again."""
    first = closely(desk)
    while words not in (found := motion(first, second := later(desk, first))):
        first = second
    return found


def never_moves(desk):
    first = closely(desk)
    return motion(first, later(desk, first)) == ""


def in_the_kernel(thread, number):
    """Wait until the thread sleeps in this system call."""
    path = f"/proc/self/task/{thread.native_id}/syscall"
    while True:
        with open(path) as file:  # noqa: PTH123
            if file.read().split()[0] == str(number):
                return


def burn(over):
    while not over.is_set():
        pass


def wait_for_a_lock(over):
    over.wait(LONG_S)


def test_a_thread_that_computes_is_seen_at_a_glance(start):
    desk = EvidenceHandler(start(burn))
    first = desk.glance()
    while not motion(first, desk.glance()).startswith("it computes"):
        pass


def test_a_thread_that_waits_for_a_lock_does_not_move(start):
    assert never_moves(EvidenceHandler(start(wait_for_a_lock)))


def test_the_event_loop_itself_does_not_count(start):
    desk = EvidenceHandler(start(wait_for_a_lock))
    first = desk.glance()
    while desk.glance().at_s - first.at_s < 0.2:
        sum(range(1000))
    assert motion(first, desk.glance()) == ""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_read_of_a_pipe_in_which_nothing_comes_does_not_move(start, tmp_path):
    """Not even if the pipe has a name."""
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    thread = start(lambda over: os.read(descriptor, 1))
    in_the_kernel(thread, 0)
    assert never_moves(EvidenceHandler(thread))
    os.write(descriptor, b"x")
    thread.join(LONG_S)
    os.close(descriptor)


def test_a_thread_that_reads_files_moves(start, tmp_path):
    (tmp_path / "rows").write_bytes(bytes(1 << 20))

    def read(over):
        while not over.is_set():
            (tmp_path / "rows").read_bytes()
            over.wait(0.001)

    desk = EvidenceHandler(start(read))
    first = closely(desk).closely.read_bytes
    while closely(desk).closely.read_bytes - first < 4 << 20:
        pass


def test_a_child_that_computes_is_seen_and_one_that_sleeps_is_not(start):
    desk = EvidenceHandler(start(wait_for_a_lock))
    code = "print('ready', flush=True); input()\nwhile True: pass"
    command, pipe = [sys.executable, "-S", "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            later(desk, desk.glance())  # what it has printed is done
            assert never_moves(desk)
            child.stdin.write("go\n")
            child.stdin.flush()
            assert until_it_moves(desk, "its child processes compute")
        finally:
            child.kill()


def test_the_time_of_a_child_that_has_ended_is_not_lost(start):
    desk = EvidenceHandler(start(wait_for_a_lock))
    first = closely(desk)
    subprocess.run([sys.executable, "-S", "-c", "sum(range(10**7))"], check=True)
    assert closely(desk).closely.children_cpu_s > first.closely.children_cpu_s


def test_a_grandchild_counts(start):
    desk = EvidenceHandler(start(wait_for_a_lock))
    inner = "while True: pass"
    outer = f"import subprocess,sys; subprocess.run([sys.executable, '-S', '-c', {inner!r}])"
    command = [sys.executable, "-S", "-c", outer]
    with subprocess.Popen(command, start_new_session=True) as child:
        try:
            until_it_moves(desk, "its child processes compute")
        finally:
            os.killpg(child.pid, 9)


def test_a_thread_that_is_over_is_no_trouble(start):
    thread = start(lambda over: None)
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # noqa: PTH110
        pass
    assert motion(None, closely(EvidenceHandler(thread))) == ""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_file_whose_server_does_not_answer_is_named(start, monkeypatch):
    """The kernel says in which file's reading a thread sleeps; here it is told of by a stand-in."""
    import dtd.worker.evidence as module

    thread = start(wait_for_a_lock)
    in_the_kernel(thread, 202)
    real = module._read

    def read(path):
        if path.endswith(f"{thread.native_id}/syscall"):
            return f"0 {hex(descriptor)} 0x0"
        return real(path)

    descriptor = os.open(__file__, os.O_RDONLY)
    monkeypatch.setattr(module, "_read", read)
    assert motion(None, closely(EvidenceHandler(thread))) == f"it waits for {__file__}"
    os.close(descriptor)
    assert motion(None, closely(EvidenceHandler(thread))) == ""


def test_uninterruptible_sleep_is_a_disk(start):
    """A process that waits for a child made by vfork sleeps so."""
    code = "import ctypes,signal\nif ctypes.PyDLL(None).vfork() == 0: signal.pause()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True) as child:
        try:
            desk = EvidenceHandler(start(wait_for_a_lock))
            assert "a file server (process" in until_it_moves(desk, "it waits for a disk")
        finally:
            os.killpg(child.pid, 9)
