"""A worker's departure: on a signal for good, or for as long as the host's own command asks for it.

The command of `drain_when` is run every `POLL_S`.  While its exit code is 0 the worker leaves its
job at a step boundary, begins anew and stands by, which costs an interpreter without torch; it
takes part again after `QUIET_S` of other answers.  So one mechanism serves a cloud's notice, after
which the host is gone, and a desktop that is used by day.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Final

import structlog

from dtd.errors import ConfigError
from dtd.text.shown import one_line

log = structlog.get_logger()

POLL_S: Final = 5.0
"""The shortest notice of a cloud is 30 s."""
RUN_S: Final = 10.0
QUIET_S: Final = 60.0
_REASON_CHARACTERS: Final = 200
_READ_BYTES: Final = 4096


def check_command(command: Path | None) -> None:
    """Refuse a command that cannot be run.

    Raises:
        ConfigError: it is no executable file.
    """
    if command is not None and not (command.is_file() and os.access(command, os.X_OK)):
        raise ConfigError(
            f"drain_when: {command} is not a file that this user may execute",
            remedy=f"chmod +x {command}, and keep it where the service sees it, as in /etc/dtd",
        )


class Notice:
    """The command that says whether this worker is to leave.

    Args:
        command: its path; it is run without arguments.
        poll_s, quiet_s: pause between two runs; time without a notice until the worker is back.
    """

    def __init__(self, command: Path, *, poll_s: float = POLL_S, quiet_s: float = QUIET_S) -> None:
        self._command = command
        self._poll_s = poll_s
        self._quiet_s = quiet_s
        self._failure = ""

    async def given(self) -> str:
        """Wait until the command asks this worker to leave; returns the reason."""
        while True:
            if reason := await self.ask():
                return reason
            await asyncio.sleep(self._poll_s)

    async def over(self, told: Callable[[str], object]) -> None:
        """Return at once if the command does not ask to leave, else once it has ceased to."""
        reason, seen_s = await self.ask(), time.monotonic()
        if not reason:
            return
        log.info("stands_by", reason=reason)
        while reason or time.monotonic() - seen_s < self._quiet_s:
            if reason:
                told(reason)
                seen_s = time.monotonic()
            await asyncio.sleep(self._poll_s)
            reason = await self.ask()

    async def ask(self) -> str:
        """Run the command; returns the reason to leave, empty to stay.

        One that cannot be run or does not end in time has not asked for anything.
        """
        failure = ""
        try:
            code, said = await self._run()
        except TimeoutError:
            code, failure = -1, f"has not ended within {RUN_S:g} s"
        except OSError as error:
            code, failure = -1, f"cannot be run: {error.strerror or error}"
        if failure and failure != self._failure:
            log.warning("drain_command_failed", command=str(self._command), reason=failure)
        self._failure = failure
        return (said or f"{self._command} asks for it") if code == 0 else ""

    async def _run(self) -> tuple[int, str]:
        """Its exit code and the first line of its output."""
        with _pipe() as (output, its_end):
            process = await asyncio.create_subprocess_exec(
                self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=its_end,
                stderr=its_end,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(RUN_S):
                    code = await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):  # with whatever it has started
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            said = output.read(_READ_BYTES) or b""  # None: nothing, and somebody still may
        text = said.decode("utf-8", "replace").strip().partition("\n")[0]
        return code, one_line(text, _REASON_CHARACTERS)


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    """A pipe whose reading end never waits.

    With one of asyncio, a process counts as running for as long as anything that it has started
    holds the other end.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with FileIO(reading, "r") as output, FileIO(writing, "w") as its_end:
        yield output, its_end


class Departure:
    """Asks a worker to leave, and has it end when its time to do so is over.

    Args:
        stop: asks it, with a reason; at the second call it leaves at once.
        timeout_s: between the two.

    Attributes:
        signalled: the process is to end, and not to begin anew.
        noticed: the reason that the command gave; empty: none.
    """

    def __init__(self, stop: Callable[[str], object], timeout_s: float) -> None:
        self.signalled = asyncio.Event()
        self.noticed = ""
        self._stop = stop
        self._timeout_s = timeout_s

    def on_signal(self, name: str) -> None:
        """Leave; a signal that follows a notice only makes the departure final."""
        leaves = self.noticed and not self.signalled.is_set()
        self.signalled.set()
        if not leaves:
            self._leave(name)

    async def upon(self, notice: Notice) -> None:
        reason = await notice.given()
        if not self.signalled.is_set():
            self.noticed = reason
            self._leave(reason)

    def _leave(self, reason: str) -> None:
        late = f"{reason}; not done in {self._timeout_s:g} s (drain_timeout_s)"
        self._stop(reason)
        asyncio.get_running_loop().call_later(self._timeout_s, self._stop, late)
