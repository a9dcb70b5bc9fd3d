"""Become another program that the kernel kills when the parent dies.

    python die_with_parent.py PARENT_PID PROGRAM [ARGUMENT...]

The launcher starts every daemon through this, so that none outlives it even when it is killed with
SIGKILL.  A program of its own instead of code between fork and exec: the launcher has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, make sure that the parent still lives, become the program."""
    parent_pid, *command = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent_pid):
        sys.exit(0)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
