"""Child processes: started, watched, started again, stopped, their logs kept.

A child runs in a session of its own, so that Ctrl-C reaches this process alone, and dies with it
in any case (`scripts.cluster.die_with_parent`).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

from scripts.cluster import die_with_parent

TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 64 * 1024
GRACE_S: Final = 3.0


class Process(Protocol):
    """The needed part of a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """Its process id, and the id of its process group."""

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises `subprocess.TimeoutExpired`."""


def launch(
    command: Sequence[str],
    log: IO[bytes],
    environment: Mapping[str, str],
    talk: socket.socket | None = None,
) -> Process:
    """Start a program in a session of its own, which the kernel kills when this process dies.

    Args:
        command: the program and its arguments.
        log: where it writes.
        environment: all of its variables.
        talk: its standard input and output, if they are for something else.
    """
    wrapper = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    return subprocess.Popen(
        [*wrapper, *command],
        stdin=subprocess.DEVNULL if talk is None else talk.fileno(),
        stdout=log if talk is None else talk.fileno(),
        stderr=log,
        start_new_session=True,
        env=environment,
    )


class Child:
    """A daemon's process."""

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
        self._process: Process | None = None

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Its process id; the child has been started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again."""
        with self.log_path.open("ab") as log:
            self._process = launch(self.command, log, self._environment)

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
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return text.splitlines()[-TAIL_LINES:]


def exit_words(exit_code: int) -> str:
    """Describe the end of a process."""
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


def proc_bytes(pid: int, field: str, *, file: str = "status") -> int:
    """Memory of a process: its field `VmRSS` is the present one, `VmHWM` the peak.

    In the file `smaps_rollup`, `Pss` is the present one, with a page of k processes as 1/k.
    """
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


# --- when a child that died is started again ------------------------------------------------------


WINDOW_S: Final = 30.0
MOST_IN_WINDOW: Final = 6
FIRST_DELAY_S: Final = 0.25
# A daemon that has lived this long was killed from outside rather than by its own start.
SETTLED_S: Final = 3.0
EX_CONFIG: Final = 78


class RestartPolicy:
    """The restarts of one daemon."""

    def __init__(self) -> None:
        self._early_deaths_s: deque[float] = deque()

    def next_start_s(self, exit_code: int, now_s: float, *, lived_s: float) -> float | None:
        """The time to start it again, or None for never.

        At once when it had lived for a while.  It is not started again when it left in good order
        (code 0), when another start cannot help (EX_CONFIG), or when it has died too often soon
        after it was started.
        """
        if exit_code in (0, EX_CONFIG):
            return None
        if lived_s >= SETTLED_S:
            return now_s
        deaths_s = self._early_deaths_s
        while deaths_s and deaths_s[0] <= now_s - WINDOW_S:
            deaths_s.popleft()
        recent = len(deaths_s)
        if recent >= MOST_IN_WINDOW:
            return None
        deaths_s.append(now_s)
        return now_s + (FIRST_DELAY_S * 2 ** (recent - 1) if recent else 0.0)


# --- asked to stop --------------------------------------------------------------------------------


_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_on_stop_signals() -> None:
    """From now on the first stop signal raises SystemExit(128 + signal) in the main thread."""
    for number in _STOP_SIGNALS:
        signal.signal(number, _exit)


def ignore_stop_signals() -> None:
    """From now on stop signals do nothing, so that the clean-up ends."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _exit(number: int, _frame: object) -> NoReturn:
    ignore_stop_signals()
    sys.exit(128 + number)
