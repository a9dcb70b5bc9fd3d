"""Runs a program, and kills its process group when the process that started this one has ended.

    python -I -S script_guard.py PID COMMAND...     PID: of the process that starts it

It leads the group, and ends as the program does.  A program of its own: between fork and exec of a
process with threads, nothing is safe but exec.  Linux takes the end of the starting *thread* for
the end of its process.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_ORPHANED = signal.SIGUSR1
_BLOCKED = {_ORPHANED, signal.SIGCHLD, signal.SIGTERM}


def _end_with_parent(number: signal.Signals, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def _run(command: list[str]) -> int:
    """Start the program; returns its process id."""
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with_parent(signal.SIGKILL, guard)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        os.execv(command[0], command)  # noqa: S606
    return pid


def main() -> None:
    """Run the command, and end as it does."""
    parent, *command = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    _end_with_parent(_ORPHANED, int(parent))
    pid = _run(command)
    ended = status = 0
    while not ended:
        if signal.sigwait(_BLOCKED) is _ORPHANED:
            os.killpg(0, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no other disposition
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
