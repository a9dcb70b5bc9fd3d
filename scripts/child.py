"""One daemon as a child process of the launcher: started, watched, stopped, its log kept.

A child runs in a session of its own, so that Ctrl-C reaches the launcher alone, and dies with the
launcher whatever happens to that (`scripts.die_with_parent`).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts import die_with_parent

TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 64 * 1024
GRACE_S: Final = 3.0


class Child:
    """A daemon's process.

    Args:
        name: what people call it.
        command: program and arguments; the program as an absolute path.
        log_path: what it prints is appended here.
        environment: variables on top of ours.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log_path = log_path
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Its process id; the child has been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again."""
        wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*wrapper, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment,
            )

    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, as soon as it has one, or None when time ran out."""
        assert self._process is not None
        try:
            return self._process.wait(None if math.isinf(timeout_s) else max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to it and to the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def log_tail(self) -> list[str]:
        """The last lines that it printed."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-TAIL_LINES:]


def exit_words(exit_code: int) -> str:
    """How a process ended, in words."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    return f"was killed by {signal.Signals(-exit_code).name}"


def stop_all(children: Iterable[Child], *, grace_s: float = GRACE_S) -> None:
    """Ask all to end, and end those that have not within the grace; then none is left."""
    started = [child for child in children if child.started]
    deadline_s = time.monotonic() + grace_s
    for child in started:
        child.signal_group(signal.SIGTERM)
        # A stopped process does not see SIGTERM before it is continued.
        child.signal_group(signal.SIGCONT)
    for child in started:
        child.wait(deadline_s - time.monotonic())
        child.signal_group(signal.SIGKILL)
        child.wait(math.inf)
