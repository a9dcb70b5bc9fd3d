"""Profiles some steps of a running job in this process, when an operator asks for it.

The event loop puts an order into `StepProfiler.asked`, and the training loop tests that attribute
between steps.  A step that is not profiled calls marks that do nothing.  While one is under way,
phases of the step are marked, the ring records its spans, and torch's profiler runs.  Afterwards a
thread writes what was recorded to a file, and says so.  A generation that ends, for whatever
reason, ends the profile with what it has.
"""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dtd.exchange.api import Collective
from dtd.observe.profile.spans import DATA, NS, STEP, RingSpans, SpanLog
from dtd.observe.profile.trace import MAX_ROWS, MAX_TRACKS, Track, encoded

MOST_STEPS: Final = 100
WRITE_S: Final = 30.0
"""The end of a generation waits no longer for a file."""

_CLOCK_READINGS: Final = 5
_COMPRESSION: Final = 3
_TEMPORARY: Final = ".tmp"
_HIDDEN: Final = (
    "torch's profiler does not run beside a process group, so its operations are not shown"
)
_PROFILER: Final = threading.Lock()
"""Held while torch's profiler runs: there is one in a process."""

Done = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrder:
    """An operator's request for a profile.

    Attributes:
        steps: most steps to profile.
        limit_s: time after which no further step is profiled.
        first_step: committed steps before the first one; at once if there are more.
        done: called on any thread when the file is there: {"steps", "dropped", "note"}; or with
            {"reason"} when there is none.
    """

    steps: int
    limit_s: float
    first_step: int
    path: Path
    done: Done


class NoMarks:
    """Marks of a step that is not profiled: nothing is recorded."""

    def begin_step(self) -> None:
        pass

    def ended(self, phase: str) -> None:
        pass

    def loaded(self, begun_s: float) -> None:
        pass

    def end_step(self, number: int) -> None:
        pass


NO_MARKS: Final = NoMarks()


class StepProfiler:
    """Profiler of one job in one process.

    Args:
        begins: called before torch's profiler starts or stops, with a kind of work that is new each
            time: where little memory or processor time is left that takes long, and is no stall.

    Attributes:
        asked: an order that is not done; set by the event loop while it is None.
        marks: of the step under way.
        sees_torch: torch's profiler may run; not beside a process group, see
            `dtd.train.memory.measured`.
    """

    def __init__(
        self, *, sees_torch: bool = True, begins: Callable[[str], None] = lambda _kind: None
    ) -> None:
        self.sees_torch = sees_torch
        self._begins = begins
        self.asked: ProfileOrder | None = None
        self.marks: StepMarks | NoMarks = NO_MARKS
        self._ring = RingSpans()
        self._until_s = 0.0
        self._torch: Any = None
        self._note = ""
        self._writer: threading.Thread | None = None

    def advance(self, ring: Collective, step: int) -> None:
        """Between two steps: begin or end a requested profile."""
        order, marks = self.asked, self.marks
        if order is None or self._writes:
            return
        if not isinstance(marks, StepMarks):
            if step >= order.first_step:
                self._begin(order, ring)
        elif marks.steps >= order.steps or time.monotonic() >= self._until_s:
            self._end(order, marks, ring)

    def end_generation(self, ring: Collective, *, waits: bool) -> None:
        """No step follows on this ring: end the profile with the recorded steps.

        Args:
            ring: the ring.
            waits: return when the file is written, as this process may end then.
        """
        order, marks = self.asked, self.marks
        if isinstance(marks, StepMarks):
            assert order is not None
            self._end(order, marks, ring)
        elif order is not None and not self._writes:
            self.asked = None
            order.done({"reason": "the generation ended before a step was profiled"})
        if waits and self._writer is not None:
            self._writer.join(WRITE_S)

    @property
    def _writes(self) -> bool:
        """Whether a file is being written; its order stands until then."""
        return self._writer is not None and self._writer.is_alive()

    def _begin(self, order: ProfileOrder, ring: Collective) -> None:
        self._begins(f"start of {order.path.name}")
        marks = StepMarks()
        self.marks, self._ring = marks, RingSpans()
        self._until_s = time.monotonic() + order.limit_s
        self._torch, self._note = _start_torch() if self.sees_torch else (None, _HIDDEN)
        ring.record(marks.log, self._ring)

    def _end(self, order: ProfileOrder, marks: StepMarks, ring: Collective) -> None:
        """Stop recording, and have the file written; the order is done when it is."""
        ring.record(None, None)
        torch_profiler, self._torch, self.marks = self._torch, None, NO_MARKS
        if torch_profiler is not None:
            self._begins(f"end of {order.path.name}")
            _stop_torch(torch_profiler)
        self._writer = threading.Thread(
            target=self._write,
            args=(order, marks, self._ring, torch_profiler, self._note),
            name="profile",
            daemon=True,
        )
        self._writer.start()

    def _write(
        self, order: ProfileOrder, marks: StepMarks, ring: RingSpans, profiler: Any, note: str
    ) -> None:
        """Write the file, and report it, or why there is none."""
        try:
            tracks, left_out = _tracks(profiler)
            dropped = {
                "spans": marks.log.dropped + ring.log.dropped,
                "operations": left_out,
            }
            spans = [*marks.log.spans, *ring.log.spans]
            contents = encoded(spans, tracks, ahead_ns=_unix_ahead_ns(), dropped=dropped)
            _write_file(order.path, contents)
            said: Mapping[str, Any] = {"steps": marks.steps, "dropped": dropped, "note": note}
        except OSError as error:
            said = {"reason": f"{order.path} cannot be written: {error.strerror or error}"}
        self.asked = None
        order.done(said)


class StepMarks:
    """The phases of steps; belongs to the training thread."""

    def __init__(self) -> None:
        self.log = SpanLog()
        self.steps = 0
        self._step_ns = self._phase_ns = 0

    def begin_step(self) -> None:
        self._step_ns = self._phase_ns = time.monotonic_ns()

    def ended(self, phase: str) -> None:
        now_ns = time.monotonic_ns()
        self.log.add(phase, self._phase_ns, now_ns)
        self._phase_ns = now_ns

    def loaded(self, begun_s: float) -> None:
        """Rows have been waited for since then, by `time.perf_counter`: on Linux the same clock."""
        self.log.add(DATA, int(begun_s * NS), time.monotonic_ns())

    def end_step(self, number: int) -> None:
        self.log.add(STEP, self._step_ns, time.monotonic_ns(), number)
        self.steps += 1


def _unix_ahead_ns() -> int:
    """Time of the Unix clock, less that of the monotonic clock.

    The reading that took the least time counts: the training thread may run between two clocks.
    """
    readings = []
    for _ in range(_CLOCK_READINGS):
        before_ns, unix_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, unix_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


def _start_torch() -> tuple[Any, str]:
    """Return torch's profiler, running, and why there is none."""
    import torch  # here: the event loop's thread makes a StepProfiler and has not loaded it
    from torch._C._autograd import _profiler_enabled

    if _profiler_enabled() or not _PROFILER.acquire(blocking=False):
        return None, "torch's profiler was in use, so its operations are not shown"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no lines of its own in the job's output
    activities = [torch.profiler.ProfilerActivity.CPU]
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler: Any = torch.profiler.profile(activities=activities)
    profiler.start()
    return profiler, ""


def _stop_torch(profiler: Any) -> None:
    try:
        profiler.stop()
    finally:
        _PROFILER.release()


def _tracks(profiler: Any) -> tuple[list[Track], int]:
    """Return what torch recorded by thread and stream, and how many operations were left out.

    The longest are kept.
    """
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    if results is None:
        return [], 0
    found = [(event.duration_ns(), event) for event in results.events()]
    found = [one for one in found if not one[1].name().startswith("[")]  # [memory] is no span
    kept = sorted(found, key=lambda one: -one[0])[:MAX_ROWS]
    tracks: dict[str, list[tuple[str, int, int]]] = {}
    for duration_ns, event in kept:
        begin_ns = event.start_ns()
        row = (event.name(), begin_ns, begin_ns + duration_ns)
        tracks.setdefault(_track_of(event), []).append(row)
    largest = sorted(tracks, key=lambda name: -len(tracks[name]))[:MAX_TRACKS]
    listed = [
        Track(name=name, rows=sorted(tracks[name], key=lambda row: (row[1], -row[2])))
        for name in sorted(largest)
    ]
    return listed, len(found) - sum(len(track.rows) for track in listed)


def _track_of(event: Any) -> str:
    if str(event.device_type()).endswith("CPU"):
        return f"thread {event.start_thread_id()}"
    return f"GPU {event.device_index()}, stream {event.device_resource_id()}"


def _write_file(path: Path, contents: Mapping[str, Any]) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + _TEMPORARY)
    with gzip.open(fresh, "wt", encoding="utf-8", compresslevel=_COMPRESSION) as file:
        json.dump(contents, file, separators=(",", ":"))
    fresh.replace(path)
