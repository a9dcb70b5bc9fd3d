"""Detects activity in this process outside its event loop: the shell of `dtd.cluster.motion`.

A glance reads clocks only, which costs microseconds and never gives up the interpreter's lock: a
thread that compiles in Python would not give it back for long.  A close look reads /proc, and is
taken only when a glance shows nothing.  What cannot be read counts as nothing: then a thread is
judged by what can.  Linux only, as all of dtd.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

import dtd
from dtd.cluster.motion import Closely, Evidence

MOST_TASKS: Final = 256
"""Threads and processes that a close look visits at most: it is to take a few milliseconds."""

MOST_PATH: Final = 200

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_FILE_CALLS: Final = {
    # read, write, pread64, pwrite64, readv, writev, fsync, fdatasync, getdents64, preadv, preadv2
    "x86_64": frozenset({0, 1, 17, 18, 19, 20, 74, 75, 217, 295, 327}),
    "aarch64": frozenset({63, 64, 67, 68, 65, 66, 82, 83, 61, 69, 286}),
}
"""Numbers of system calls whose first argument is the file that is read or written."""

_CALLS: Final = _FILE_CALLS.get(platform.machine(), frozenset())


class EvidenceHandler:
    """Looks at this process; made and used on its event loop.

    Args:
        trainer: the training thread.
    """

    def __init__(self, trainer: threading.Thread) -> None:
        self._trainer = trainer
        self._loop_thread = threading.get_ident()
        self._loop_task = threading.get_native_id()

    def glance(self) -> Evidence:
        """Clocks only."""
        now_s = time.monotonic()
        return Evidence(at_s=now_s, cpu_s=time.process_time() - time.thread_time())

    def closely(self, glance: Evidence, *, gpu_use: float) -> Evidence:
        """A glance, and what /proc and the stack show besides.

        Args:
            glance: the observation of a moment ago.
            gpu_use: share of time in which this worker's GPU works; negative: unknown.
        """
        own = _stat("/proc/self/stat")
        trainer = _stat(f"/proc/self/task/{self._trainer.native_id}/stat")
        children = [_stat(f"/proc/{pid}/stat") for pid in _descendants()]
        here = [_io("/proc/self/io"), *(_io(f"/proc/{child.pid}/io") for child in children)]
        seen = Closely(
            children_cpu_s=own.waited_for_s + sum(one.cpu_s + one.waited_for_s for one in children),
            read_bytes=sum(here) - _io(f"/proc/self/task/{self._loop_task}/io"),
            page_faults=trainer.page_faults,
            runnable=trainer.state == "R",
            waits_for=self._waits_for() or next(filter(None, map(_wait_of, children)), ""),
            compiles=is_compiling(self._loop_thread),
            gpu_use=gpu_use,
        )
        return Evidence(at_s=glance.at_s, cpu_s=glance.cpu_s, closely=seen)

    def _waits_for(self) -> str:
        """Return what a Python thread waits for in the kernel, other than another thread."""
        tasks = [one.native_id for one in threading.enumerate()][:MOST_TASKS]
        for task in tasks:
            if task is not None and task != self._loop_task:
                path = f"/proc/self/task/{task}"
                waits = _disk(_stat(f"{path}/stat").state) or _file_of(path)
                if waits:
                    return waits
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    """The needed fields of /proc/PID/stat."""

    pid: int = 0
    state: str = ""
    page_faults: int = 0
    cpu_s: float = 0.0
    waited_for_s: float = 0.0


def _stat(path: str) -> _Stat:
    content = _read(path)
    pid = content.split(" ", 1)[0]
    fields = content.rpartition(")")[2].split()  # a name may hold spaces and brackets
    if len(fields) < 15:
        return _Stat()
    return _Stat(
        pid=int(pid),
        state=fields[0],
        page_faults=int(fields[9]),
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        waited_for_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
    )


def _io(path: str) -> int:
    """Bytes that were asked of files and pipes, or came from disks for mapped files."""
    figures = dict(line.split(": ", 1) for line in _read(path).splitlines() if ": " in line)
    return int(figures.get("rchar", 0)) + int(figures.get("read_bytes", 0))


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


def _wait_of(process: _Stat) -> str:
    path = f"/proc/{process.pid}/task/{process.pid}"
    waits = _disk(process.state) or (_file_of(path, f"/proc/{process.pid}") if process.pid else "")
    return f"{waits} (process {process.pid})" if waits else ""


def _disk(state: str) -> str:
    """Uninterruptible sleep: a disk, or a file server."""
    return "a disk or a file server" if state == "D" else ""


def _file_of(task: str, process: str = "/proc/self") -> str:
    """The file in whose reading or writing a thread sleeps; pipes and sockets are none."""
    call = _read(f"{task}/syscall").split()
    if len(call) < 2 or not call[0].isdigit() or int(call[0]) not in _CALLS:
        return ""
    try:
        link = str(Path(f"{process}/fd/{int(call[1], 16)}").readlink())
    except OSError:
        return ""
    # Nothing else is asked of the file: its server may not answer us either.
    is_file = link.startswith("/") and not link.startswith("/dev/")
    return link[:MOST_PATH] if is_file and "pipe" not in _read(f"{task}/wchan") else ""


def _read(path: str) -> str:
    """A file of /proc; empty when it is gone or not for us."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 16384).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


# --- place of a thread, and compilers at work: from the stacks of Python -------------------------


MAX_WHERE_CHARACTERS: Final = 200
TELLING_S: Final = 1.0
"""A stall this long is worth saying where."""

_LIBRARIES: Final = ("site-packages", "dist-packages", "torch")
_DTD: Final = Path(dtd.__file__).parent
_TASKS: Final = _DTD / "tasks"  # count as the user's own
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))

_COMPILERS: Final = (
    ("_dynamo/convert_frame.py", ""),
    ("_inductor/compile_fx.py", "compile"),  # has wrappers too, which stay while its code runs
    ("triton/compiler/compiler.py", ""),
)
"""Files on a stack while a compiler works, and parts of its functions' names."""


def where_stalled(thread_ident: int | None, stalled_s: float) -> str:
    """`where_is`; empty until a stall has lasted for a while."""
    return where_is(thread_ident) if stalled_s > TELLING_S else ""


def where_is(thread_ident: int | None) -> str:
    """The line that a thread executes: the innermost of the user's own, if there is one.

    Args:
        thread_ident: None when there is no thread.

    Returns:
        Like `task.py:4 in loss`, at most 200 characters; empty when the thread is over.
    """
    frame = sys._current_frames().get(thread_ident or 0)  # noqa: SLF001 - its documented name
    if frame is None:
        return ""
    innermost = frame
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return _in_words(frame or innermost)[:MAX_WHERE_CHARACTERS]


def is_compiling(but: int) -> bool:
    """Whether a compiler is on the stack of a thread of Python's.

    A backward pass on a GPU is compiled in a thread of its own.

    Args:
        but: ident of a thread that does not count.
    """
    stacks = sys._current_frames().items()  # noqa: SLF001 - its documented name
    return any(_compiles(frame) for ident, frame in stacks if ident != but)


def _compiles(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        for file, name in _COMPILERS:
            if code.co_filename.endswith(file) and name in code.co_name:
                return True
        frame = frame.f_back
    return False


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
