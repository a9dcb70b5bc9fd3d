"""Feeds a process that passes figures on to MLflow or W&B; never waits for it.

It is fed through a pipe (`dtd.coordinator.tracking.sink`); what that does not take at once is
dropped and counted.  A process that ends is started again, ever less often, and learns of the
running jobs then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from dtd.coordinator.tracking.entries import Began, Ended, Entry, to_line
from dtd.shown import one_line

MAX_PIPE_BYTES: Final = 1024 * 1024
MAX_REMARK_BYTES: Final = 16 * 1024
RESTART_AFTER_S: Final = 5.0
RESTART_AT_MOST_AFTER_S: Final = 300.0
TOLD_EVERY_S: Final = 60.0
END_WITHIN_S: Final = 4.0
MAX_RUNNING: Final = 64
"""Jobs of which a process that was started again is told."""


class Teller(Protocol):
    """Reports incidents to operators."""

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        """Something for an operator to read."""
        ...


class Feed:
    """One sink's process.

    Args:
        settings: the sink's, with its name under "sink".
        teller: has operators told.

    Attributes:
        name: of the sink.
        dropped: entries that did not reach the process.
        failing: why the sink does not work at present; empty if it does.
    """

    def __init__(self, settings: Mapping[str, Any], teller: Teller) -> None:
        self._settings = settings
        self._teller = teller
        self._process: asyncio.subprocess.Process | None = None
        self._running: dict[str, Began] = {}
        self._told_s = -TOLD_EVERY_S
        self.name: str = settings["sink"]
        self.dropped = 0
        self.failing = ""

    def tell(self, entry: Entry) -> None:
        """Pass an entry on, or drop it; returns at once."""
        if isinstance(entry, Began):
            while len(self._running) >= MAX_RUNNING:
                del self._running[next(iter(self._running))]
            self._running[entry.job] = entry
        elif isinstance(entry, Ended):
            self._running.pop(entry.job, None)
        self._write(to_line(entry))

    def _write(self, line: bytes) -> None:
        stream = self._process.stdin if self._process is not None else None
        if (
            stream is None
            or stream.is_closing()
            or stream.transport.get_write_buffer_size() > MAX_PIPE_BYTES
        ):
            self.dropped += 1
            return
        stream.write(line)

    async def run(self) -> None:
        """Start the process again and again, until cancelled."""
        pause_s = RESTART_AFTER_S
        while True:
            begun_s = time.monotonic()
            await self._serve()
            lived_s = time.monotonic() - begun_s
            pause_s = RESTART_AFTER_S if lived_s > RESTART_AT_MOST_AFTER_S else 2 * pause_s
            await asyncio.sleep(min(pause_s, RESTART_AT_MOST_AFTER_S))

    async def _serve(self) -> None:
        """One process, from its start to its end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "dtd.coordinator.tracking.sink"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=MAX_REMARK_BYTES,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._process = process
        try:
            self._write(json.dumps(dict(self._settings)).encode() + b"\n")
            for began in self._running.values():
                self._write(to_line(began))
            await self._listen(process)
            code = await process.wait()
            self._fails(self.failing or f"its process has ended with code {code}")
        finally:
            self._process = None
            await _end(process)

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                remark = json.loads(line)
                self._heard(str(remark["state"]), one_line(str(remark.get("why", ""))), remark)
            except (ValueError, KeyError, TypeError):
                continue

    def _heard(self, state: str, why: str, remark: Mapping[str, Any]) -> None:
        if state in ("ready", "works"):
            self._works(int(remark["dropped"]))
        elif state == "refused":
            self._say("it refuses figures of a job, which are dropped: " + why)
        else:
            self._fails(why)

    def _fails(self, why: str) -> None:
        was, self.failing = self.failing, why
        if not was:
            self._say(why)

    def _say(self, why: str) -> None:
        now = time.monotonic()
        if now - self._told_s >= TOLD_EVERY_S:
            self._told_s = now
            self._teller.incident(
                "tracking_failed",
                f"figures do not reach {self.name}, training continues: {why}",
                sink=self.name,
            )

    def _works(self, dropped: int) -> None:
        if self.failing:
            self.failing = ""
            self._teller.incident(
                "tracking_resumed",
                f"figures reach {self.name} again; {dropped + self.dropped} entries were dropped",
                sink=self.name,
                dropped=dropped + self.dropped,
            )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the process's input, and wait for its end for a limited time."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_WITHIN_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
