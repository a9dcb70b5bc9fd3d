"""Movement in a process, seen from its event loop: real threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from types import ModuleType

import pytest

from dtd.cluster.progress import motion
from dtd.worker.evidence import ThreadObserver, where_stalled

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
    return desk.closely(desk.glance())


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


def burn(over):
    while not over.is_set():
        pass


def wait_for_a_lock(over):
    over.wait(LONG_S)


def test_a_thread_that_computes_is_seen_at_a_glance(start):
    desk = ThreadObserver(start(burn))
    first = desk.glance()
    while not motion(first, desk.glance()).startswith("it computes"):
        pass


def test_a_thread_that_waits_for_a_lock_does_not_move(start):
    assert never_moves(ThreadObserver(start(wait_for_a_lock)))


def test_the_event_loop_itself_does_not_count(start):
    desk = ThreadObserver(start(wait_for_a_lock))
    first = desk.glance()
    while desk.glance().at_s - first.at_s < 0.2:
        sum(range(1000))
    assert motion(first, desk.glance()) == ""


def test_a_child_that_computes_is_seen_and_one_that_sleeps_is_not(start):
    desk = ThreadObserver(start(wait_for_a_lock))
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


def test_a_grandchild_counts(start):
    desk = ThreadObserver(start(wait_for_a_lock))
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
    assert motion(None, closely(ThreadObserver(thread))) == ""


def test_uninterruptible_sleep_is_a_disk(start):
    """A process that waits for a child made by vfork sleeps so."""
    code = "import ctypes,signal\nif ctypes.PyDLL(None).vfork() == 0: signal.pause()"
    with subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True) as child:
        try:
            desk = ThreadObserver(start(wait_for_a_lock))
            assert "a file server (process" in until_it_moves(desk, "it waits for a disk")
        finally:
            os.killpg(child.pid, 9)


# --- the line of code that a thread executes -----------------------------------------------------

USERS_CODE = """
def hang(inside, release):
    inside.set()
    release.wait()
"""


def test_the_users_line_is_named_once_a_stall_lasts():
    module = ModuleType("task")
    exec(compile(USERS_CODE, "/home/user/dtd/task.py", "exec"), module.__dict__)
    inside, release = threading.Event(), threading.Event()
    thread = threading.Thread(target=module.hang, args=(inside, release))
    thread.start()
    inside.wait()
    assert where_stalled(thread.ident, 0.5) == ""
    assert where_stalled(thread.ident, 1.5) == "task.py:4 in hang"
    release.set()
    thread.join()
    assert where_stalled(thread.ident, 1.5) == ""
