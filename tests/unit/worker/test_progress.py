"""When a training thread counts as stuck, and where it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from dtd.worker.progress import ProgressWatch, where_is

LEAST_PATIENCE_S = 5.0


@pytest.fixture
def watch() -> ProgressWatch:
    made = ProgressWatch(first_patience_s=120.0, least_patience_s=5.0)
    made.begin(100.0)
    return made


def test_a_thread_without_a_generation_is_not_stalled() -> None:
    watch = ProgressWatch(first_patience_s=120.0, least_patience_s=5.0)
    assert watch.stalled_s(1000.0) == 0.0
    watch.begin(1000.0)
    watch.end()
    assert watch.stalled_s(2000.0) == 0.0


def test_a_stall_counts_from_the_last_mark(watch: ProgressWatch) -> None:
    assert watch.stalled_s(103.0) == 3.0
    watch.mark(103.0)
    assert watch.stalled_s(104.5) == 1.5


def test_waiting_for_the_ring_is_no_stall_and_no_gap(watch: ProgressWatch) -> None:
    watch.committed()
    told = watch.heartbeat_fields(150.0, waits=True, thread_ident=None)
    assert told == {"stalled_s": 0.0, "patience_s": LEAST_PATIENCE_S, "where": ""}
    watch.mark(150.1)
    assert watch.patience_s() == LEAST_PATIENCE_S


def test_before_the_first_step_the_warm_up_is_the_limit(watch: ProgressWatch) -> None:
    watch.mark(130.0)
    assert watch.patience_s() == 120.0


def test_patience_is_learned_from_the_longest_gap_after_the_first_step(
    watch: ProgressWatch,
) -> None:
    watch.mark(140.0)  # compiling: not how long things take from now on
    watch.committed()
    assert watch.patience_s() == LEAST_PATIENCE_S
    watch.mark(142.0)
    watch.committed()
    watch.mark(142.5)
    assert watch.patience_s() == pytest.approx(20.0)


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


def test_a_heartbeat_says_where_only_after_a_while(
    watch: ProgressWatch, hanging: threading.Thread
) -> None:
    for later_s, where in ((0.5, ""), (1.5, "task.py:4 in hang")):
        told = watch.heartbeat_fields(100.0 + later_s, waits=False, thread_ident=hanging.ident)
        assert told == {"stalled_s": later_s, "patience_s": 120.0, "where": where}


def test_a_thread_that_is_over_is_nowhere() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert where_is(thread.ident) == ""
