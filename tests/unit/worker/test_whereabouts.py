"""Where a training thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from dtd.worker.whereabouts import where_is, where_stalled

USERS_CODE = """
def hang(inside, release):
    inside.set()
    release.wait()
"""


@pytest.fixture
def hanging() -> Iterator[threading.Thread]:
    """A thread that waits in code that is neither dtd's nor a library's."""
    module = ModuleType("task")
    exec(compile(USERS_CODE, "/home/user/dtd/task.py", "exec"), module.__dict__)
    inside, release = threading.Event(), threading.Event()
    thread = threading.Thread(target=module.hang, args=(inside, release))
    thread.start()
    inside.wait()
    yield thread
    release.set()
    thread.join()


def test_where_a_thread_is(hanging: threading.Thread) -> None:
    assert where_is(hanging.ident) == "task.py:4 in hang"


def test_where_is_told_only_after_a_while(hanging: threading.Thread) -> None:
    assert where_stalled(hanging.ident, 0.5) == ""
    assert where_stalled(hanging.ident, 1.5) == "task.py:4 in hang"


def test_a_thread_that_is_over_is_nowhere() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert where_is(thread.ident) == ""
