"""Curves for TensorBoard: `STATE/tensorboard/JOB/` with event files, written in the store's thread.

Read them with `tensorboard --logdir STATE/tensorboard`.  Losing points must cost nothing: what
cannot be written is dropped and said once, training does not notice.  A coordinator that starts
again begins another file beside those that are there, which is how TensorBoard expects it.

A job's settings and its end are written for TensorBoard's HParams tab, which finds the metrics
among the job's scalars by itself.

Bounded are points that wait, and jobs (the oldest curves are removed); a job's points become rarer
as they become many (`dtd.observe.sinks.trackers`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import shutil
import socket
import struct
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import structlog

from dtd.observe.sinks.entries import Began, Ended, Entry, Figures
from dtd.text.shown import one_line

log = structlog.get_logger()

MAX_WAITING_POINTS: Final = 1000
MAX_JOBS: Final = 256
RETRY_S: Final = 10.0
_HPARAMS: Final = "hparams"
_STATUS: Final[Mapping[str, int]] = {"done": 1, "failed": 2}
"""Values of TensorBoard's `api.proto`; 0: neither."""


class Curves:
    """The curves of all jobs of one coordinator, in one directory each.

    `later` runs a function in the store's thread.
    """

    def __init__(
        self,
        directory: Path,
        later: Callable[[Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._later = later
        self._clock = clock
        self._waiting: deque[Entry] = deque(maxlen=MAX_WAITING_POINTS)
        self._files: dict[str, _JobFile] = {}
        self._retry_at = -math.inf
        self._warned = False

    def add(self, entry: Entry) -> None:
        """Queue a point, or the begin or end of a job; returns at once (event loop)."""
        self._waiting.append(entry)
        if len(self._waiting) == 1:
            self._later(self._drain)

    def close(self) -> None:
        """Write queued points and close the files; in the store's thread."""
        self._drain()
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _drain(self) -> None:
        """Write queued points; in the store's thread."""
        while self._waiting:
            self._write(self._waiting.popleft())

    def _write(self, entry: Entry) -> None:
        if self._clock() < self._retry_at:
            return
        try:
            self._append(entry)
        except OSError as error:
            # What was half written ends that file; the next point begins another.
            self._retry_at = self._clock() + RETRY_S
            self._close_file(entry.job)
            if not self._warned:
                log.warning("curves_failed", directory=str(self._directory), error=str(error))
            self._warned = True
        else:
            self._warned = False

    def _append(self, entry: Entry) -> None:
        if isinstance(entry, Ended) and not (self._directory / entry.job).is_dir():
            return  # it has no curves: it never began, or they were deleted
        file = self._file_of(entry.job)
        if isinstance(entry, Figures):
            file.write(entry)
        elif isinstance(entry, Began):
            file.begin(entry)
        else:
            file.end(entry)
            self._close_file(entry.job)

    def _file_of(self, job: str) -> _JobFile:
        if job not in self._files:
            _make_room(self._directory, {job, *self._files})
            self._files[job] = _JobFile(self._directory / job)
        return self._files[job]

    def _close_file(self, job: str) -> None:
        file = self._files.pop(job, None)
        if file is not None:
            file.close()


class _JobFile:
    """One event file of a job.  All methods raise OSError."""

    def __init__(self, directory: Path) -> None:
        self.job = directory.name
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._newest_step = -1
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}"
        self._stream: IO[bytes] = (directory / name).open("xb", buffering=0)
        try:
            self._append({"wall_time": time.time(), "file_version": "brain.Event:2"})
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()

    def write(self, point: Figures) -> None:
        if point.regular and point.step < self._newest_step:
            # Steps were lost: TensorBoard forgets the points that this start has overtaken.
            start = {"status": _library().event_pb2.SessionLog.START}
            self._append({"wall_time": point.unix_s, "step": point.step, "session_log": start})
        values = [{"tag": tag, "simple_value": value} for tag, value in point.scalars.items()]
        summary = {"value": values}
        self._append({"wall_time": point.unix_s, "step": point.step, "summary": summary})
        if point.regular:
            self._newest_step = point.step

    def begin(self, begun: Began) -> None:
        """The job's settings, for the HParams tab."""
        start = _library().plugin_hparams_pb2.SessionStartInfo(start_time_secs=begun.unix_s)
        start.group_name = self.job
        for name, value in begun.settings.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        self._append_session(begun.unix_s, "session_start_info", start)

    def end(self, ended: Ended) -> None:
        step = int(ended.result.get("steps", 0))
        last = {f"final/{one_line(name)}": value for name, value in ended.result.items()}
        self.write(
            Figures(job=self.job, step=step, unix_s=ended.unix_s, scalars=last, regular=False)
        )
        end = _library().plugin_hparams_pb2.SessionEndInfo(
            status=_STATUS.get(ended.state, 0), end_time_secs=ended.unix_s
        )
        self._append_session(ended.unix_s, "session_end_info", end)

    def _append_session(self, unix_s: float, kind: str, message: Any) -> None:
        content = _library().plugin_hparams_pb2.HParamsPluginData(version=0, **{kind: message})
        plugin = {"plugin_name": _HPARAMS, "content": content.SerializeToString()}
        value = {"tag": f"_hparams_/{kind}", "metadata": {"plugin_data": plugin}}
        self._append({"wall_time": unix_s, "summary": {"value": [value]}})

    def _append(self, fields: Mapping[str, Any]) -> None:
        record = _record(_library().event_pb2.Event(**fields).SerializeToString())
        if self._stream.write(record) < len(record):
            raise OSError("the disk took only a part")


def _record(data: bytes) -> bytes:
    """A record of an event file: length and its checksum, data and its checksum."""
    checksum, size = _library().masked_crc32c, struct.pack("<Q", len(data))
    return size + struct.pack("<I", checksum(size)) + data + struct.pack("<I", checksum(data))


class _Library(NamedTuple):
    """Parts of tensorboardX that are used; its own writer waits for the disk after each point."""

    event_pb2: Any
    plugin_hparams_pb2: Any
    masked_crc32c: Callable[[bytes], int]


@functools.cache
def _library() -> _Library:
    """Load parts of tensorboardX; the whole imports torch, which takes seconds and much memory."""
    spec = importlib.util.find_spec("tensorboardX")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = types.ModuleType("tensorboardX")
    package.__path__ = list(spec.submodule_search_locations)
    had = sys.modules.setdefault("tensorboardX", package) is not package
    from tensorboardX.proto import event_pb2, plugin_hparams_pb2  # type: ignore[import-untyped]
    from tensorboardX.record_writer import masked_crc32c  # type: ignore[import-untyped]

    if not had:
        del sys.modules["tensorboardX"]
    return _Library(event_pb2, plugin_hparams_pb2, masked_crc32c)


def _make_room(directory: Path, needed: Collection[str]) -> None:
    """Remove the oldest jobs' curves that are not written, if there would be too many."""
    with contextlib.suppress(FileNotFoundError):
        others = [one for one in directory.iterdir() if one.name not in needed]
        others.sort(key=lambda one: one.stat().st_mtime)
        for one in others[: max(0, len(others) - MAX_JOBS + len(needed))]:
            shutil.rmtree(one)
