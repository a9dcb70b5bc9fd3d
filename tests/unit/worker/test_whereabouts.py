"""Where a training thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from dtd.worker.evidence import is_compiling, where_is, where_stalled

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


@pytest.mark.parametrize(
    ("file", "name", "compiles"),
    [
        ("/usr/lib/torch/_dynamo/convert_frame.py", "anything", True),
        ("/usr/lib/torch/_inductor/compile_fx.py", "compile_fx_backward", True),
        ("/usr/lib/torch/_inductor/compile_fx.py", "run", False),  # of what it has compiled
        ("/usr/lib/torch/_dynamo/eval_frame.py", "compile_wrapper", False),
    ],
)
def test_a_compiler_on_the_stack_of_any_thread_but_one(
    file: str, name: str, compiles: bool
) -> None:
    module = ModuleType("compiler")
    exec(compile(USERS_CODE.replace("hang", name), file, "exec"), module.__dict__)
    inside, release = threading.Event(), threading.Event()
    thread = threading.Thread(target=getattr(module, name), args=(inside, release))
    thread.start()
    inside.wait()
    assert is_compiling(threading.get_ident()) is compiles
    assert not is_compiling(thread.ident or 0)
    release.set()
    thread.join()
