"""Programs that a job has this worker run: a launched script, the installer of its packages."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, Final

from dtd.worker.environment import script_guard

END_S: Final = 8.0
"""Time between SIGTERM and SIGKILL; a worker that is stopped waits a little longer."""

_GUARD: Final = (sys.executable, "-I", "-S", str(script_guard.__file__))


class GuardedProcess:
    """A program in a process group of its own, which ends with the thread that started it.

    Args:
        environment: all of its variables.
        output: gets what it prints; None: this process's own output does.

    Attributes:
        code: its exit code, the negative number of the signal that has ended it; None while it
            runs.
        began_s, ended_s: monotonic times; the latter counts once it has ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: IO[bytes] | None = None,
    ) -> None:
        self.code: int | None = None
        self.began_s = self.ended_s = time.monotonic()
        self._process = subprocess.Popen(
            [*_GUARD, str(os.getpid()), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output and subprocess.STDOUT,
            start_new_session=True,
        )
        self._descriptor = os.pidfd_open(self._process.pid)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; what it leaves behind of its process group is killed."""
        if self.code is None and self._poll.poll(timeout_s * 1000):
            self.ended_s = time.monotonic()
            self._signal(signal.SIGKILL)  # before wait(), which frees the number of the group
            self.code = self._process.wait()
            os.close(self._descriptor)

    def end(self) -> None:
        """Ask it to end, and after `END_S` kill it."""
        if self.code is None:
            self._signal(signal.SIGTERM)
            self.wait(END_S)
        if self.code is None:
            self._signal(signal.SIGKILL)
            self.wait(END_S)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
