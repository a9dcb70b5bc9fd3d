"""Answers MEASURE: this host, a link from another worker, or the time of a job's steps.

A step is measured by `dtd.train.warm_up.measure` in a process of its own, so torch is not loaded
here.  `dtdctl doctor` judges the figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dtd import __version__
from dtd.config import WorkerConfig
from dtd.datasets.local import in_environment
from dtd.errors import DtdError, RequestRefused
from dtd.packages.requirements import MEMBER
from dtd.text.json_reader import read_json
from dtd.text.shown import cut
from dtd.wire import messages as m
from dtd.worker.environment.environments import ENVIRONMENTS, Environments, with_path
from dtd.worker.measure.links import link_figures

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
            figures = await asyncio.to_thread(link_figures, message, config.name)
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
