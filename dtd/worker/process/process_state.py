"""The worker's process as jobs need it: its interpreter, and the state that outlives execve.

A job's code runs in the worker's process and may change whatever belongs to it: environment,
working directory, umask, limits, CPU affinity.  The kernel hands these on to the image with which
the worker replaces itself after the job, so the next job would train with them.  They are recorded
before any job's code runs and restored before execve; a process whose state cannot be restored
ends, and its supervisor starts another.  Nothing large is imported here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

HASH_SEED: Final = {"PYTHONHASHSEED": "0"}
"""Processes of the job inherit it: loader processes, and `dtd.train.warm_up.measure`."""

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def is_fit_for_jobs() -> bool:
    """Whether this interpreter orders sets of strings as those of all workers do.

    And whether it imports nothing from the working directory, where a job's code runs and writes.
    """
    return bool(sys.flags.safe_path) and not sys.flags.hash_randomization


def replace_process(given: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process with a worker of this command line, in an interpreter fit for jobs."""
    again = [sys.executable, "-P", "-m", "dtd.worker", *given]
    os.execve(sys.executable, again, {**environment, **HASH_SEED})  # noqa: S606


class _Part(NamedTuple):
    """One property of the process: reads it, and writes a value that was read before."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _read_umask() -> int:
    umask = os.umask(0o077)  # the kernel tells it only in exchange for another
    os.umask(umask)
    return umask


_PARTS: Final[Mapping[str, _Part]] = {
    "working directory": _Part(Path.cwd, os.chdir),
    "umask": _Part(_read_umask, os.umask),
    "CPU affinity": _Part(
        functools.partial(os.sched_getaffinity, 0), functools.partial(os.sched_setaffinity, 0)
    ),
    "niceness": _Part(
        functools.partial(os.getpriority, os.PRIO_PROCESS, 0),
        functools.partial(os.setpriority, os.PRIO_PROCESS, 0),
    ),
    **{
        name: _Part(
            functools.partial(resource.getrlimit, getattr(resource, name)),
            functools.partial(resource.setrlimit, getattr(resource, name)),
        )
        for name in dir(resource)
        if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"  # an earlier name of NOFILE
    },
}


def free_forked_children() -> None:
    """Have processes that a job's code makes by fork treat signals as if this were no worker.

    Call it before the event loop installs its handlers.  A handler writes the signal's number to
    the event loop's wake-up descriptor, which a forked child shares, so the worker would take a
    signal to the child for its own.  Signals are blocked until the child has neither: the forking
    code may end the child at once.
    """
    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in _STOP_SIGNALS}
    thread = threading.local()

    def before() -> None:
        thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, thread.mask)

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_child)


class ProcessState:
    """The state of this process now; belongs to its main thread, which calls execve.

    Raises:
        OSError: the working directory does not exist any more.
    """

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._values = {name: part.read() for name, part in _PARTS.items()}
        self._inheritable = _inheritable_descriptors()

    def restore(self) -> list[str]:
        """Restore all but the environment, which execve takes; returns what could not be."""
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # a job's alarm would end the next process
        for descriptor in _inheritable_descriptors() - self._inheritable:
            os.set_inheritable(descriptor, False)  # noqa: FBT003 - takes no keyword
        return [name for name, value in self._values.items() if not _restored(_PARTS[name], value)]


def _restored(part: _Part, value: Any) -> bool:
    """Whether the part has this value, at once or after it was written."""
    try:
        if part.read() != value:
            part.write(value)
    except (OSError, ValueError):  # the latter: a limit above the hard one
        return False
    return True


def _inheritable_descriptors() -> set[int]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            if os.get_inheritable(int(entry.name)):
                found.add(int(entry.name))
    return found
