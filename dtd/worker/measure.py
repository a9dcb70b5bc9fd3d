"""Answers MEASURE and PROBE: this host, links from other workers, the time and a profile of steps.

A link is measured by fetching zeros through the other worker's data port, as a state would be:
small ranges one by one for the latency, large ones with several ahead for the bandwidth; both are
bounded.  A step is measured by `dtd.train.warm_up.measure` in a process of its own, so torch is
not loaded here.  `dtdctl doctor` judges the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import shutil
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from dtd import __version__, diagnostics
from dtd.address import Address
from dtd.config import WorkerConfig
from dtd.datasets.local import in_environment
from dtd.diagnostics import Diagnostic
from dtd.errors import CheckpointError, DtdError, RequestRefused
from dtd.net.addresses.routes import addresses
from dtd.net.clients.blocking_link import BlockingLink, first_link
from dtd.net.clients.fetch_client import file_digest, open_resource
from dtd.net.data_port.fetch_server import MAX_REQUESTS_AHEAD
from dtd.net.data_port.resources import PROBE_SCOPE, Resource, file_blob
from dtd.packages.requirements import MEMBER
from dtd.text.json_reader import read_json
from dtd.text.shown import cut
from dtd.train.profile import MOST_STEPS, ProfileOrder, StepProfiler
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from dtd.worker.environment.environments import ENVIRONMENTS, Environments, with_path
from dtd.worker.job.training import Training

log = structlog.get_logger()

ROUND_TRIPS: Final = 20
LINK_TIMEOUT_S: Final = 3.0
OTHER_TIMEOUT_S: Final = 1.0
"""For addresses of which one is used already, so that seven dead ends end in time."""
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


async def measure(
    message: m.Measure, config: WorkerConfig, *, fetch_package: FetchPackage, idle: bool
) -> m.Measured:
    """Measure what `message` names; a step only while the worker is `idle`, beside no job."""
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


# --- a link --------------------------------------------------------------------------------------


def _open_link(
    message: m.Measure | m.Probe, to: Sequence[Address], by: str, timeout_s: float
) -> tuple[BlockingLink, Address]:
    """Call the worker that `message` names at one of these addresses; what it sends is dropped."""
    scratch = memoryview(bytearray(MOST_RANGE_BYTES))
    entry = DataCredential(
        secret=message.ticket_key, scope=PROBE_SCOPE, expires_s=message.ticket_expires_s
    )
    open_at = functools.partial(
        BlockingLink,
        role=m.Role.FETCH,
        name=by,
        timeout_s=timeout_s,
        entry=entry,
        place=lambda _message, size: scratch[:size] if 0 < size <= len(scratch) else None,
        peer_name=message.name,
    )
    return first_link(to, open_at)


def _link_figures(message: m.Measure, by: str) -> dict[str, Any]:
    """Figures of the direction from the other worker to this one; runs in a thread."""
    link, address = _open_link(message, addresses(message), by, LINK_TIMEOUT_S)
    with contextlib.closing(link):
        open_resource(link, PROBE_SCOPE, timeout_s=LINK_TIMEOUT_S)
        figures = {
            "host": address.host,
            "rtt_s": _round_trip_s(link),
            "same_host": link.is_same_host,
        }
        if message.what == "latency":
            return figures
        figures["bytes_per_s"] = _bytes_per_s(link)
    if not figures["same_host"]:
        figures["others"] = _other_rates(message, address, by)
    return figures


def _other_rates(message: m.Measure, used: Address, by: str) -> dict[str, float]:
    """Rates of the peer's other addresses, in bytes a second, by host; dead ends are left out."""
    rates = {}
    for one in addresses(message):
        if one == used:
            continue
        with contextlib.suppress(OSError, DtdError):
            link, _ = _open_link(message, [one], by, OTHER_TIMEOUT_S)
            with contextlib.closing(link):
                open_resource(link, PROBE_SCOPE, timeout_s=OTHER_TIMEOUT_S)
                rates[one.host] = _bytes_per_s(link)
    return rates


def _round_trip_s(link: BlockingLink) -> float:
    """Median of small requests and their answers."""
    return statistics.median(_fetch_s(link, 1) for _ in range(ROUND_TRIPS))


def _fetch_s(link: BlockingLink, length: int) -> float:
    begun_s = time.perf_counter()
    link.send(m.FetchRange(blob=0, offset=0, length=length))
    link.receive(timeout_s=LINK_TIMEOUT_S)
    return time.perf_counter() - begun_s


def _bytes_per_s(link: BlockingLink) -> float:
    """Rate of a transfer that is bounded in time and bytes, once it is under way.

    Ranges grow while one arrives within `RANGE_S` of the one before.  So on a fast link with a long
    way enough of them are on it, and on a slow link none takes long.
    """
    length, left = LEAST_RANGE_BYTES, TRANSFER_BYTES
    asked = deque([length] * (MAX_REQUESTS_AHEAD // 2))
    link.send(*[_range(length) for length in asked])
    link.receive(timeout_s=LINK_TIMEOUT_S)
    asked.popleft()
    until_s = time.perf_counter() + TRANSFER_S
    begun_s, got = time.perf_counter(), 0
    while asked:
        came_s = time.perf_counter()
        if left >= length and came_s < until_s:
            link.send(_range(length))
            asked.append(length)
            left -= length
        link.receive(timeout_s=LINK_TIMEOUT_S)
        got += asked.popleft()
        if asked and length < MOST_RANGE_BYTES and time.perf_counter() - came_s < RANGE_S:
            length *= 2
            begun_s, got = time.perf_counter(), 0
    return got / (time.perf_counter() - begun_s)


def _range(length: int) -> m.FetchRange:
    return m.FetchRange(blob=0, offset=0, length=length)


# --- a step --------------------------------------------------------------------------------------


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
    variables = {**os.environ, **in_environment(message.spec.get("data", {}))}
    if place is not None and (place / MEMBER).is_file():
        made = Environments(config.state_dir / ENVIRONMENTS, 0).made
        variables |= with_path(await asyncio.to_thread(made, place))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "dtd.train.warm_up.measure"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=variables,
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


# --- a profile of the running job's steps --------------------------------------------------------


DIRECTORY: Final = "profiles"
PROFILE: Final = "profile"
PREFIX: Final = "profile/"
SUFFIX: Final = ".json.gz"
MOST_KEPT: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)


class Profiles:
    """Profiles of this worker's jobs; belongs to the event loop."""

    def __init__(self, state_dir: Path, tell: Callable[[m.Message], None]) -> None:
        self._directory = state_dir / DIRECTORY
        self._tell = tell

    def begin(self, message: m.Measure, job: Training | None) -> None:
        """Have the training thread record; the answer follows when it is done."""
        try:
            profiler = self._profiler_for(message, job)
        except RequestRefused as error:
            refused = m.Measured(
                number=message.number, figures={}, reason=error.message, remedy=error.remedy
            )
            self._tell(refused)
            return

        def done(said: Mapping[str, Any]) -> None:
            reason = str(said.get("reason", ""))
            figures = {} if reason else dict(said)
            if not reason:
                self._forget_old()
            self._tell(m.Measured(number=message.number, figures=figures, reason=reason))

        log.info("profile_asked", job=message.job, steps=message.steps, profile=message.profile)
        profiler.asked = ProfileOrder(
            steps=min(message.steps, MOST_STEPS),
            limit_s=message.limit_s,
            first_step=message.first_step,
            path=self._directory / (message.profile + SUFFIX),
            done=done,
        )

    def _profiler_for(self, message: m.Measure, job: Training | None) -> StepProfiler:
        if not _NAME.fullmatch(message.profile):
            raise RequestRefused(f"{message.profile!r} does not name a profile")
        if job is None or job.job != message.job:
            raise RequestRefused(f"this worker does not train {message.job}")
        if job.profiler.asked is not None:
            raise RequestRefused(
                "a profile is under way on this worker", remedy="try again when it has ended"
            )
        return job.profiler

    def _forget_old(self) -> None:
        """Keep the newest files; in the thread that has written one."""
        with contextlib.suppress(OSError):
            files = sorted(self._directory.iterdir(), key=lambda path: path.stat().st_mtime)
            for path in files[:-MOST_KEPT]:
                path.unlink(missing_ok=True)

    def open(self, resource: str) -> Resource:
        """Return the file of a profile; blocking.

        Raises:
            CheckpointError: there is none of this name.
        """
        name = resource.removeprefix(PREFIX)
        path = self._directory / (name + SUFFIX)
        if not _NAME.fullmatch(name) or not path.is_file():
            raise CheckpointError(f"{resource} is not on this worker's disk")
        manifest = {"files": {path.name: {"hash": file_digest(path)}}}
        return Resource(manifest=json.dumps(manifest).encode(), blobs=[file_blob(path)])


# --- which other workers cannot be reached from here: for the log and for `systemctl status` -----


class PeerDiagnostics:
    """The workers that probes have not reached; a cluster has at most `MAX_WORLD` of them."""

    def __init__(self) -> None:
        self._unreached: dict[str, Diagnostic] = {}

    @property
    def first(self) -> Diagnostic | None:
        """The one that has lasted longest."""
        return next(iter(self._unreached.values()), None)

    def probed(self, probe: m.Probe, answer: m.Probed) -> None:
        """A worker was called; a failure is logged when it is news."""
        known = self._unreached.pop(probe.name, None)
        if answer.reachable:
            return
        where = " or ".join(map(str, addresses(probe)))
        tell = diagnostics.data_port_narrow if answer.greeted else diagnostics.data_port_closed
        diagnostic = tell(probe.name, where, answer.reason)
        self._unreached[probe.name] = diagnostic
        while len(self._unreached) > m.MAX_WORLD:
            del self._unreached[next(iter(self._unreached))]
        if known != diagnostic:
            log.warning(
                "peer_unreachable",
                peer=probe.name,
                address=where,
                message=diagnostic.message,
                remedy=diagnostic.remedy,
            )

    def forget(self) -> None:
        """A ring stands: all its workers are reached."""
        self._unreached.clear()


# --- answer PROBEs: whether another worker's data port can be reached from here ------------------
#
# Opens a connection as for a fetch, waits for the WELCOME of the worker that is meant,
# and fetches as many zeros as a chunk of a bucket may have: there are paths that pass small packets
# and lose large ones, and a WELCOME would come through those.  Both ends of a link probe, so both
# directions carry a payload.  What a broken link is worth is decided by the coordinator.


PROBE_BYTES: Final = 256 * 1024
"""More than any path carries in one packet, whatever a network card puts together."""

MOST_S: Final = 30.0
"""A link that is slower than PROBE_BYTES in this time is no link for training."""


def probe(message: m.Probe, *, by: str, timeout_s: float) -> m.Probed:
    """Call the worker that `message` names, and fetch something from it; blocking."""
    greeted, reason = False, ""
    try:
        link, _ = _open_link(message, addresses(message), by, timeout_s)
        with contextlib.closing(link):
            greeted = True
            _fetch_zeros(link, timeout_s)
    except TimeoutError:
        reason = f"no answer within {timeout_s:g} s"
        if greeted:
            reason = f"it answers, but {PROBE_BYTES >> 10} KiB do not arrive: {reason}"
    except OSError as error:
        reason = error.strerror or str(error)
    except DtdError as error:
        reason = str(error)
    return m.Probed(name=message.name, reachable=not reason, reason=reason, greeted=greeted)


def _fetch_zeros(link: BlockingLink, silence_s: float) -> None:
    """Wait for the payload as long as more of it comes."""
    open_resource(link, PROBE_SCOPE, timeout_s=MOST_S, silence_s=silence_s)
    link.send(m.FetchRange(blob=0, offset=0, length=PROBE_BYTES))
    link.receive(timeout_s=MOST_S, silence_s=silence_s)
    link.send(m.Goodbye())
