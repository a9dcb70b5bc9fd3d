"""Processor time of recording and passing on figures, measured side by side.

    python -m scripts.figures_cost observers|worker|store|sinks|process|query

Processor time, not wall time: it is what a busy machine leaves comparable.  Blocks with and without
alternate (ABBA), and medians of the differences of neighbouring blocks are told.  Everything is the
product's own code: observers in their threads, the store on a disk, a sink's line and pipe.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from dtd.coordinator.history.recorder import MetricsRecorder
from dtd.coordinator.store.thread import StoreThread
from dtd.coordinator.tracking.entries import Began, Figures, to_line
from dtd.coordinator.tracking.tensorboard import point_of
from dtd.wire import messages as m
from dtd.wire.step_rows import StepRow, pack_step_rows, unpack_step_rows

STEP_S: Final = 0.01
STEPS: Final = 200
PAIRS: Final = 10
WORKERS: Final = 64
BEATS_PER_S: Final = 4
PROGRESS_PER_S: Final = 10
BLOCK_S: Final = 6.0
POINTS: Final = 20_000
MILLION: Final = 1_000_000


def observers() -> dict[str, Any]:
    """Measure one observer that counts, told of every 10 ms step."""
    from dtd.train.callbacks import Callbacks
    from dtd.train.observers import Observers
    from dtd.train.state.replica import Replica

    class Counting:
        told = 0

        def on_step(self, at: Any) -> None:
            self.told += 1

    nobody = cast("Replica", None)  # looked at by callbacks only, of which this task has none
    watched = Callbacks(object(), nobody, Observers([Counting()]))
    bare = Callbacks(object(), nobody)
    metrics = {"loss": 0.5, "lr": 0.1, "grad_norm": 1.0}

    def block(callbacks: Callbacks) -> float:
        begun = time.process_time()
        for step in range(STEPS):
            callbacks.tell("on_step", epoch=0, metrics=metrics, step=step)
            time.sleep(STEP_S)
        return (time.process_time() - begun) / STEPS

    costs = _differences(lambda: block(watched), lambda: block(bare))
    return _told("seconds of a processor a step", costs, of=STEP_S)


class _Nobody:
    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        print(kind, message, file=sys.stderr)


def store() -> dict[str, Any]:
    """Measure the coordinator with 64 workers and 100 steps a second: share of one processor."""
    return asyncio.run(_store())


async def _store() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        recorder = MetricsRecorder(Path(directory), 2**30, _Nobody(), StoreThread(print))
        costs, step = [], 0
        for pair in range(PAIRS):
            used = {}
            for kept in (True, False) if pair % 2 else (False, True):
                used[kept] = await _reports(recorder if kept else None, step)
                step += round(BLOCK_S * PROGRESS_PER_S * 10)
            costs.append((used[True] - used[False]) / BLOCK_S)
        dropped = recorder.dropped
        await recorder.close()
    return {**_told("processors", costs, of=1.0), "dropped": dropped}


async def _reports(recorder: MetricsRecorder | None, step: int) -> float:
    """A block of reports as they come; the processor time that it took."""
    begun, until = time.process_time(), time.monotonic() + BLOCK_S
    turn = 0
    while time.monotonic() < until:
        message = _progress(step + 10 * turn)
        beats = WORKERS * BEATS_PER_S // PROGRESS_PER_S
        for worker in range(turn * beats, (turn + 1) * beats):
            name = f"worker-{worker % WORKERS}"
            beat = _beat(step + 10 * turn)
            if recorder is not None:
                recorder.heartbeat(name, "identity", beat, "next")
        if recorder is not None:
            recorder.progress("worker-0", "identity", message)
        turn += 1
        await asyncio.sleep(1 / PROGRESS_PER_S)
    await asyncio.sleep(1.5)  # what was collected is written: it belongs to this block
    return time.process_time() - begun


def _progress(step: int) -> m.Progress:
    rows = [
        StepRow(
            step=step + one + 1,
            generation=1,
            epoch=0,
            steps=1,
            rows=64,
            loss=1 / (step + one + 1),
            learning_rate=0.1,
            gradient_norm=1.0,
            sent_bytes=1000,
            step_s=STEP_S,
            data_s=0.001,
            compute_s=0.006,
            comm_s=0.003,
            exposed_s=0.001,
            optimizer_s=0.001,
            skipped=0,
        )
        for one in range(10)
    ]
    return m.Progress(
        job="job-1",
        generation=1,
        step=step + 10,
        epoch=0,
        loss=0.5,
        learning_rate=0.1,
        grad_norm=1.0,
        rows=64,
        step_s=STEP_S,
        compute_s=0.006,
        comm_s=0.003,
        exposed_s=0.001,
        skipped=False,
        skipped_steps=0,
        steps=pack_step_rows(rows),
    )


def _beat(step: int) -> m.Heartbeat:
    return m.Heartbeat(state="training", job="job-1", step=step, memory_bytes=10**9, step_s=STEP_S)


def sinks() -> dict[str, Any]:
    """Measure one point that the coordinator sends to a sink's process: its line alone."""
    message = _progress(0)

    def block() -> float:
        begun = time.process_time()
        for _ in range(POINTS):
            point = point_of(message, 1.0)
            figures = Figures(
                job=point.job, step=point.step, unix_s=point.unix_s, scalars=dict(point.scalars)
            )
            to_line(figures)
        return (time.process_time() - begun) / POINTS

    return _told("seconds of a processor a point", [block() for _ in range(PAIRS)], of=0.1)


def query() -> dict[str, Any]:
    """Measure a plot of three curves with 1000 points each over a million steps."""
    from dtd.coordinator.history import query as history_query
    from dtd.coordinator.history.store import Batch, MetricsStore
    from dtd.observe.history import series

    with tempfile.TemporaryDirectory() as directory:
        kept = MetricsStore(Path(directory), 2**30, print)
        for first in range(0, MILLION, 2000):
            rows = [
                row
                for step in range(first, first + 2000, 10)
                for row in unpack_step_rows(_progress(step).steps)
            ]
            entries = [series.step_entry("job-1", row, 1000.0 + row.step) for row in rows]
            kept.write([Batch("identity", one) for one in entries], 1000.0)
        request = m.GetMetrics(
            job="job-1", names=("loss", "learning_rate", "rows_per_s"), points=1000
        )
        times = []
        for _ in range(3 * PAIRS):
            begun = time.process_time()
            answer = history_query.answer(kept.database, request)
            times.append(time.process_time() - begun)
        kept.close()
    points = [len(one["points"]) for one in answer["series"]]
    return {**_told("seconds of a processor", times, of=0.1), "points": points}


def worker() -> dict[str, Any]:
    """Measure a step in a worker: rows that rank 0 adds to its progress, ten steps at a time."""
    rows = list(unpack_step_rows(_progress(0).steps))

    def block() -> float:
        begun = time.process_time()
        for _ in range(POINTS // 10):
            pack_step_rows(rows)
        return (time.process_time() - begun) / POINTS

    return _told("seconds of a processor a step", [block() for _ in range(PAIRS)], of=STEP_S)


def process() -> dict[str, Any]:
    """Measure the process that writes for W&B, at ten points a second: share of one processor."""
    return _told("processors", [_process(BLOCK_S * 4) - _process(0.0) for _ in range(2)], of=1.0)


def _process(run_s: float) -> float:
    """Processor time a second of a sink's process and its own, or all of one that has no points."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as directory:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "dtd.coordinator.tracking.sink"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert child.stdin is not None
        settings = {"sink": "wandb", "directory": directory, "project": "cost"}
        child.stdin.write(json.dumps(settings).encode() + b"\n")
        child.stdin.write(to_line(Began(job="job-1", identity="i", unix_s=1.0)))
        scalars = dict(point_of(_progress(0), 1.0).scalars)
        for step in range(round(run_s * PROGRESS_PER_S)):
            line = to_line(Figures(job="job-1", step=step, unix_s=1.0, scalars=scalars))
            child.stdin.write(line)
            child.stdin.flush()
            time.sleep(1 / PROGRESS_PER_S)
        child.stdin.close()
        child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used / (run_s or BLOCK_S * 4)


def _differences(with_it: Callable[[], float], without: Callable[[], float]) -> list[float]:
    """Return the differences of neighbouring blocks, ABBA."""
    found = []
    for pair in range(PAIRS):
        if pair % 2:
            there, bare = with_it(), without()
        else:
            bare, there = without(), with_it()
        found.append(there - bare)
    return found


def _told(unit: str, values: list[float], *, of: float) -> dict[str, Any]:
    median = statistics.median(values)
    return {
        "unit": unit,
        "median": median,
        "least": min(values),
        "greatest": max(values),
        "share": median / of,
        "blocks": len(values),
    }


if __name__ == "__main__":
    known = {one.__name__: one for one in (observers, worker, store, sinks, process, query)}
    print(json.dumps({sys.argv[1]: known[sys.argv[1]]()}))
