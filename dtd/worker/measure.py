"""Answers MEASURE: this host, the link from another worker, or the time of a job's step here.

A link is measured by fetching zeros through the other worker's data port, as a state would be:
small ranges one by one for the latency, large ones with several ahead for the bandwidth; both are
bounded.  A step is measured by `dtd.train.measure` in a process of its own, so torch is not loaded
here.  `dtdctl doctor` judges the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dtd import __version__
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.errors import DtdError, RequestRefused
from dtd.json_reader import read_json
from dtd.net.blocking_link import BlockingLink
from dtd.net.data_server import MAX_FETCH_BYTES, MAX_REQUESTS_AHEAD, PROBE_SCOPE
from dtd.net.fetch_client import open_resource
from dtd.shown import cut
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential

MAX_MEASUREMENTS: Final = 4
ROUND_TRIPS: Final = 20
LINK_TIMEOUT_S: Final = 3.0
TRANSFER_S: Final = 0.5
TRANSFER_BYTES: Final = 32 * 1024 * 1024
LEAST_RANGE_BYTES: Final = 64 * 1024
MOST_RANGE_BYTES: Final = 1024 * 1024
RANGE_S: Final = 0.01
"""A range takes about so long, so that one more than the time allows costs little."""

STEPS_S: Final = 8.0
STEP_TIMEOUT_S: Final = 120.0
MAX_ANSWER_BYTES: Final = 256 * 1024
MAX_TRACE_CHARACTERS: Final = 2000
MAX_TRACE_BYTES: Final = 4 * MAX_TRACE_CHARACTERS
_PIECE_BYTES: Final = 64 * 1024

FetchPackage = Callable[[str], Path]


class Measurements:
    """Those under way in one worker.

    Args:
        config: this worker's settings.
        tell: sends a message to the coordinator.
        fetch_package: blocks until a shipped package lies on this worker's disk.
    """

    def __init__(
        self,
        config: WorkerConfig,
        tell: Callable[[m.Message], None],
        fetch_package: FetchPackage,
    ) -> None:
        self._config = config
        self._tell = tell
        self._fetch_package = fetch_package
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, message: m.Measure, *, idle: bool) -> None:
        """Measure beside everything else; too many requests at once are not answered."""
        if len(self._tasks) >= MAX_MEASUREMENTS:
            return
        task = asyncio.create_task(self._answer(message, idle=idle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: m.Measure, *, idle: bool) -> None:
        fetch = self._fetch_package
        self._tell(await measure(message, self._config, fetch_package=fetch, idle=idle))


async def measure(
    message: m.Measure, config: WorkerConfig, *, fetch_package: FetchPackage, idle: bool
) -> m.Measured:
    """Do what `message` asks for.

    Args:
        message: what to measure.
        config: this worker's settings.
        fetch_package: as for `Measurements`.
        idle: it has no job; a step is not measured beside one.
    """
    try:
        if message.what == "host":
            figures = host_figures(config)
        elif message.what in ("latency", "bandwidth"):
            figures = await asyncio.to_thread(_link_figures, message, config.name)
        elif message.what == "step":
            if not idle:
                raise RequestRefused(
                    f"{config.name} is busy", remedy="wait until no job is running"
                )
            place = None
            if message.package:
                place = await asyncio.to_thread(fetch_package, message.package)
            figures = await _step_figures(message, config, place)
        else:
            raise RequestRefused(f"{config.name} cannot measure {message.what!r}")
    except DtdError as error:
        return m.Measured(
            number=message.number, figures={}, reason=cut(error.message), remedy=error.remedy
        )
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror
        return m.Measured(number=message.number, figures={}, reason=why or str(error))
    return m.Measured(number=message.number, figures=figures)


def host_figures(config: WorkerConfig) -> dict[str, Any]:
    """Clock, disk and version; the clock is read last."""
    usage = shutil.disk_usage(config.state_dir)
    return {
        "version": __version__,
        "device": config.device,
        "state_dir": str(config.state_dir),
        "disk_free_bytes": usage.free,
        "disk_bytes": usage.total,
        "cpus": len(os.sched_getaffinity(0)),
        "time_s": time.time(),
    }


# --- a link ----------------------------------------------------------------------------------


def _link_figures(message: m.Measure, by: str) -> dict[str, Any]:
    """Figures of the direction from the other worker to this one; runs in a thread."""
    scratch = memoryview(bytearray(MOST_RANGE_BYTES))
    link = BlockingLink(
        Address(message.host, message.port),
        role=m.Role.FETCH,
        name=by,
        timeout_s=LINK_TIMEOUT_S,
        entry=DataCredential(
            secret=message.ticket_key,
            scope=PROBE_SCOPE,
            expires_s=message.ticket_expires_s,
        ),
        place=lambda _message, size: scratch[:size] if 0 < size <= len(scratch) else None,
    )
    with contextlib.closing(link):
        open_resource(link, PROBE_SCOPE, timeout_s=LINK_TIMEOUT_S)
        if message.what == "latency":
            return {"rtt_s": _round_trip_s(link)}
        return {"rtt_s": _round_trip_s(link), "bytes_per_s": _bytes_per_s(link)}


def _round_trip_s(link: BlockingLink) -> float:
    """Median of small requests and their answers."""
    return statistics.median(_fetch_s(link, 1) for _ in range(ROUND_TRIPS))


def _fetch_s(link: BlockingLink, length: int) -> float:
    begun_s = time.perf_counter()
    link.send(m.FetchRange(blob=0, offset=0, length=length))
    link.receive(timeout_s=LINK_TIMEOUT_S)
    return time.perf_counter() - begun_s


def _bytes_per_s(link: BlockingLink) -> float:
    """Rate of a transfer that is bounded in time and bytes, once it is under way."""
    guess = LEAST_RANGE_BYTES / _fetch_s(link, LEAST_RANGE_BYTES)
    length = int(min(max(guess * RANGE_S, LEAST_RANGE_BYTES), MOST_RANGE_BYTES, MAX_FETCH_BYTES))
    left = max(MAX_REQUESTS_AHEAD, TRANSFER_BYTES // length)
    ahead = min(MAX_REQUESTS_AHEAD // 2, left)
    request = m.FetchRange(blob=0, offset=0, length=length)
    link.send(*[request] * ahead)
    left -= ahead
    link.receive(timeout_s=LINK_TIMEOUT_S)
    begun_s, got, waiting = time.perf_counter(), 0, ahead - 1
    while waiting:
        if left and time.perf_counter() - begun_s < TRANSFER_S:
            link.send(request)
            left, waiting = left - 1, waiting + 1
        link.receive(timeout_s=LINK_TIMEOUT_S)
        got, waiting = got + length, waiting - 1
    return got / (time.perf_counter() - begun_s)


# --- a step ----------------------------------------------------------------------------------


async def _step_figures(
    message: m.Measure, config: WorkerConfig, place: Path | None
) -> dict[str, Any]:
    asked = {
        "spec": message.spec,
        "device": config.device,
        "threads": config.threads,
        "worlds": list(range(1, message.worlds + 1)),
        "limit_s": STEPS_S,
        "place": str(place) if place is not None else "",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "dtd.train.measure"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            out, err = await _said(process, json.dumps(asked).encode())
    except TimeoutError:
        raise RequestRefused(
            f"a step on {config.name} was not measured within {STEP_TIMEOUT_S:g} s"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # also what it has started
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return _read_answer(out, err, config.name)


async def _said(process: asyncio.subprocess.Process, asked: bytes) -> tuple[bytes, bytes]:
    """The ends of stdout and stderr: a task may print much, and this is a daemon's memory."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.write(asked)
    process.stdin.close()
    out, err = await asyncio.gather(
        _end_of(process.stdout, MAX_ANSWER_BYTES + 1), _end_of(process.stderr, MAX_TRACE_BYTES)
    )
    return out, err


async def _end_of(stream: asyncio.StreamReader, most_bytes: int) -> bytes:
    kept = b""
    while piece := await stream.read(_PIECE_BYTES):
        kept = (kept + piece)[-most_bytes:]
    return kept


def _read_answer(out: bytes, err: bytes, name: str) -> dict[str, Any]:
    try:
        figures = read_json(out, max_bytes=MAX_ANSWER_BYTES)
    except ValueError:
        figures = None
    if not isinstance(figures, dict):
        trace = err.decode(errors="replace").strip()[-MAX_TRACE_CHARACTERS:]
        raise RequestRefused(f"the measurement on {name} failed: {trace or 'it printed nothing'}")
    if "error" in figures:
        raise RequestRefused(f"{name}: {figures['error']}", remedy=str(figures.get("remedy", "")))
    return figures
