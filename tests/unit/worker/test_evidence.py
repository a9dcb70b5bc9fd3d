"""The line on which a stuck thread stands."""

from __future__ import annotations

import threading
from types import ModuleType

from dtd.worker.job.evidence import where_stalled

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
