"""Evidence of a training thread that makes no progress: what it and its children do, and where.

Linux only, as all of dtd.  What cannot be read counts as nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import structlog

import dtd
from dtd.cluster.workers.progress import Evidence
from dtd.own_loop.turns import turn_of

log = structlog.get_logger()

MOST_TASKS: Final = 256
"""Most threads and child processes of a close look, which is to take a few milliseconds."""

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_STATES: Final = {"D": "a disk or a file server", "R": "a processor"}
"""States of a thread in /proc that show activity outside of it."""


def glance() -> Evidence:
    """Read clocks only, in microseconds, and without giving up the interpreter's lock.

    Called on the event loop, whose own time does not count.  A thread that computes in Python
    would not give the lock back for long.
    """
    now_s = time.monotonic()
    return Evidence(at_s=now_s, cpu_s=time.process_time() - time.thread_time())


def look_closely(trainer: threading.Thread, glanced: Evidence) -> Evidence:
    """Add to the glance of a moment ago what /proc shows."""
    own = _stat("/proc/self/stat")
    thread = _stat(f"/proc/self/task/{trainer.native_id}/stat")
    children = [_stat(f"/proc/{pid}/stat") for pid in _descendants()]
    return Evidence(
        at_s=glanced.at_s,
        cpu_s=glanced.cpu_s,
        children_cpu_s=own.waited_for_s + sum(one.cpu_s + one.waited_for_s for one in children),
        waits_for=_STATES.get(thread.state, "")
        or next(filter(None, map(_wait_of_child, children)), ""),
    )


class _Stat(NamedTuple):
    """The needed fields of /proc/PID/stat."""

    pid: int = 0
    state: str = ""
    cpu_s: float = 0.0
    waited_for_s: float = 0.0


def _stat(path: str) -> _Stat:
    content = _read(path)
    fields = content.rpartition(")")[2].split()  # a name may hold spaces and brackets
    if len(fields) < 15:
        return _Stat()
    return _Stat(
        pid=int(content.split(" ", 1)[0]),
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        waited_for_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
    )


def _wait_of_child(child: _Stat) -> str:
    return f"{_STATES['D']} (process {child.pid})" if child.state == "D" else ""


def _descendants() -> Iterator[int]:
    """Child processes, and theirs, whichever thread has started them."""
    with contextlib.suppress(OSError):
        tasks = [str(task) for task in Path("/proc/self/task").iterdir()]
        wanted = deque(tasks[:MOST_TASKS])
        found = 0
        while wanted and found < MOST_TASKS:
            for pid in _read(f"{wanted.popleft()}/children").split():
                found += 1
                wanted.append(f"/proc/{pid}/task/{pid}")
                yield int(pid)


def _read(path: str) -> str:
    """A file of /proc; empty when it is gone or not for us."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - many a second
            return (file.read(16384) or b"").decode("ascii", "replace")
    except OSError:
        return ""


MAX_WHERE_CHARACTERS: Final = 200
TELLING_S: Final = 1.0
"""A stall this long is worth saying where."""

_LIBRARIES: Final = ("site-packages", "dist-packages", "torch")
_DTD: Final = Path(dtd.__file__).parent
_TASKS: Final = _DTD / "tasks"  # count as the user's own
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


def where_stalled(thread_ident: int | None, stalled_s: float) -> str:
    """The line that a stalled thread, or the loop it waits for, executes: the user's innermost.

    Args:
        thread_ident: None when there is no thread.
        stalled_s: how long it has made no progress.

    Returns:
        Like `task.py:4 in loss`, at most 200 characters; empty while the stall is short, and when
        the thread is over.
    """
    frame = sys._current_frames().get(turn_of(thread_ident or 0))  # noqa: SLF001 - its documented name
    if frame is None or stalled_s <= TELLING_S:
        return ""
    innermost = frame
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return _in_words(frame or innermost)[:MAX_WHERE_CHARACTERS]


def _is_library(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    if not file.is_absolute():
        return frame.f_code.co_filename.startswith("<")
    if file.is_relative_to(_TASKS):
        return False
    installed = any(name in file.parts for name in _LIBRARIES)
    return installed or file.is_relative_to(_DTD) or file.is_relative_to(_STANDARD)


def _in_words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
