"""Standard output and error of a job: a pipe that this process reads, for `dtdctl logs`.

Once a job begins, descriptors 1 and 2 are the pipe, so that whatever prints is heard: the task, its
child processes, code in C.  The daemon's own log and last words go to copies of the descriptors
that the service began with (`dtd.host.streams.own_streams`).  Both ends of the pipe close with this
process's image: a child that outlives the job holds up nobody, and is not heard in the next job.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import ctypes
import fcntl
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import structlog

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES

log = structlog.get_logger()

MAX_LINE_CHARACTERS: Final = 4096

MAX_WAITING_LINES: Final = 1000
"""The newest are kept; a line says how many are missing before them."""

RECENT_LINES: Final = 40
"""So many tell of the end of a process."""

MAX_UNLOGGED_LINES: Final = 4 * MAX_WAITING_LINES
"""The newest are kept: of a flood of the longest lines a slow disk may not see all."""

SLICE_S: Final = 0.002
"""After so long the event loop gets its turn; the longest line takes about 0.1 ms."""

PIPE_BYTES: Final = 2**20
"""Size of the pipe where the kernel permits it (pipe(7)): code in C that prints more than that in
one piece, and lets no other thread run meanwhile, would wait for ever."""

READ_BYTES: Final = 2**13
"""So much takes 3 ms at most, if no byte of it is UTF-8; meanwhile nothing else of Python runs."""

REST_FACTOR: Final = 4
"""The reader rests so many times as long as it has worked: a flood waits, not the training."""

_STDOUT: Final = 1
_STDERR: Final = 2
_LINE_BUFFERED: Final = 1  # _IOLBF of glibc and musl
_LIBC: Final = ctypes.CDLL(None)


class OutputPipe:
    """Takes the place of standard output and error of this process, for its whole life.

    A thread reads, never the event loop alone: the loop may print as well, and must not wait for
    itself when the pipe is full.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""
        self._lines: deque[str] = deque()
        self._missing = 0
        self._recent: deque[str] = deque(maxlen=RECENT_LINES)
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        with contextlib.suppress(OSError):  # this user has too many large pipes
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        flush_output()
        for number, name in ((_STDOUT, "stdout"), (_STDERR, "stderr")):
            os.dup2(writer, number)
            stream = open(number, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.close(writer)
        _LIBC.setvbuf(_c_stdout(), None, _LINE_BUFFERED, 0)
        threading.Thread(target=self._keep_reading, name="job-output", daemon=True).start()

    def read_all(self) -> None:
        """Read all that is in the pipe now; not on the event loop, since it may be much."""
        for _ in range(PIPE_BYTES // READ_BYTES):
            with self._lock:
                data = self._read()
            if not data:
                return

    def tail(self) -> list[str]:
        """The newest lines up to now, the last of which may have no end."""
        self.read_all()
        with self._lock:
            return [*self._recent, *([self._rest] if self._rest else [])]

    def forget(self) -> None:
        with self._lock:
            self._recent.clear()

    def take(self, *, ended: bool = False) -> list[str]:
        """The newest lines since the last call, after one that says how many are missing."""
        with self._lock:
            if ended and self._rest:
                self._lines.append(self._rest)
                self._rest = ""
            lines, missing = list(self._lines), self._missing
            self._lines.clear()
            self._missing = 0
        gap = f"... {missing} lines dropped: printed faster than they are read"
        return [gap, *lines] if missing else lines

    def _keep_reading(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        data: bytes | None = None
        while data != b"":
            poll.poll()
            begun_s = time.monotonic()
            with self._lock:
                data = self._read()
            time.sleep(REST_FACTOR * (time.monotonic() - begun_s))

    def _read(self) -> bytes | None:
        """Read the pipe: None for nothing yet, empty once all writers have closed it."""
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # the job has closed whatever was open
            return b""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        if len(self._rest) > MAX_LINE_CHARACTERS:
            lines.append(self._rest)
            self._rest = ""
        lines = [line[:MAX_LINE_CHARACTERS] for line in lines]
        self._lines.extend(lines)
        self._recent.extend(lines)
        while len(self._lines) > MAX_WAITING_LINES:
            self._lines.popleft()
            self._missing += 1
        return data


def flush_output() -> None:
    """Flush the buffers of Python and C; not on the event loop, since it may wait."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # an object of the job's own, or one that is closed
            stream.flush()
    _LIBC.fflush(_c_stdout())


def _c_stdout() -> ctypes.c_void_p:
    return ctypes.c_void_p.in_dll(_LIBC, "stdout")


class JobLines:
    """Sends lines to the coordinator and logs them; belongs to the event loop.

    They are sent together, at once, so that a client that waits for a job's end finds all that
    was printed before it; this daemon's own log gets them a slice at a time, so that much output
    holds up neither heartbeats nor the ring.
    """

    def __init__(
        self,
        send: Callable[[m.Message, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._clock = clock
        self._unlogged: deque[str] = deque(maxlen=MAX_UNLOGGED_LINES)
        self._logging: asyncio.Task[None] | None = None

    def tell(self, job: str, rank: int, lines: Sequence[str]) -> None:
        """Send lines, and log them: what takes longer than a slice is left to a task."""
        if not lines:
            return
        for payload in _payloads(lines):
            self._send(m.JobOutput(job=job, rank=rank), payload)
        self._unlogged += lines
        if self._logging is None:
            self._log_slice()
        if self._unlogged and self._logging is None:
            self._logging = asyncio.create_task(self._log_slices())

    def _log_slice(self) -> None:
        end_s = self._clock() + SLICE_S
        while self._unlogged:
            self._log_line()
            if self._clock() >= end_s:
                return

    def _log_line(self) -> None:
        log.info("job_output", line=self._unlogged.popleft())

    async def _log_slices(self) -> None:
        try:
            while self._unlogged:
                await asyncio.sleep(0)
                self._log_slice()
        finally:
            while self._unlogged:  # cancelled: the process ends, and nothing waits for the loop
                self._log_line()
            self._logging = None


def _payloads(lines: Iterable[str]) -> Iterator[bytes]:
    """Whole lines, as many in each payload as a frame holds."""
    payload = bytearray()
    for line in lines:
        text = line.encode("utf-8", "replace")
        if payload and len(payload) + 1 + len(text) > DEFAULT_MAX_PAYLOAD_BYTES:
            yield bytes(payload)
            payload.clear()
        payload += b"\n" * bool(payload) + text
    yield bytes(payload)
