"""A script with its own loop as the job of a worker: `job.task = "train:__main__"`.

The script runs on a thread of its own, as `python train.py` would run it, and calls `dtd.join`.
The training thread waits for the first `run.batches`, whose numbers then are the job's.  Before the
script begins, all generators are seeded with the job's seed, so that ranks initialise their models
alike.
"""

from __future__ import annotations

import queue
import runpy
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

import torch

from dtd.errors import TaskError
from dtd.job import JobSpec, from_mapping, to_mapping
from dtd.own_loop.alone import tables_of
from dtd.own_loop.run import offer
from dtd.own_loop.task import LoopTask, UserLoop
from dtd.own_loop.turns import Point, Turns
from dtd.text.names import SCRIPT
from dtd.train.data.rows import seed_generators
from dtd.train.task import Task, load_task

_ITS_OWN: Final = ("job", "train")
"""Tables of which a script's settings count; the coordinator needs the others before it runs."""


def load_job_code(spec: JobSpec) -> tuple[Task, JobSpec]:
    """Load the task that a job names, or run its script up to its first batch.

    Returns:
        the task, and the job with the numbers that the script gives.

    Raises:
        TaskError: it cannot be loaded, or the script ends or fails before its first batch.
    """
    if not spec.job.task.endswith(SCRIPT):
        return load_task(spec.job.task, spec.task), spec
    return Script(spec).load()


class Script:
    """One run of a job's script; the host of its `dtd.join`."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._module = spec.job.task.removesuffix(SCRIPT)
        self._begun: queue.SimpleQueue[tuple[LoopTask, UserLoop] | BaseException] = (
            queue.SimpleQueue()
        )
        self._turns: Turns | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._threads = torch.get_num_threads()  # as set for the training thread

    def load(self) -> tuple[Task, JobSpec]:
        """Start the script, and return its loop when it asks for its first batch."""
        threading.Thread(target=self._run, name="script", daemon=True).start()
        begun = self._begun.get()
        if isinstance(begun, BaseException):
            raise begun
        task, loop = begun
        spec = _fitted(self._spec, loop.settings, self._module)
        task.precision = spec.train.precision
        return task, spec

    def begin(self, loop: UserLoop, turns: Turns) -> LoopTask:
        """Hand the loop to the training thread."""
        if self._turns is not None:
            raise TaskError(
                f"{self._module}.py begins a second run, and a job has one",
                remedy="train it in another job, or as a part of the first run's model",
            )
        self._turns = turns
        task = LoopTask(loop, turns, ended=self._wait)
        self._begun.put((task, loop))
        return task

    def close(self) -> None:
        """The rest of the script runs, and the training thread waits for it."""

    def _wait(self) -> None:
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        spec = self._spec
        sys.argv = [f"{self._module}.py", *map(str, spec.task.get("args", ()))]
        torch.set_num_threads(self._threads)
        seed_generators(spec.job.seed, torch.device("cpu"))
        offer(self)
        try:
            runpy.run_module(self._module, run_name="__main__", alter_sys=True)
        except SystemExit as exit_:
            if exit_.code:
                self._error = TaskError(f"{self._module}.py has exited with {exit_.code!r}")
        except BaseException as error:  # noqa: BLE001 - the training thread raises it
            self._error = error
        self._ended.set()
        if self._turns is None:
            self._begun.put(self._error or self._no_loop())
        else:
            self._turns.arrive(Point.LEFT, self._error)

    def _no_loop(self) -> TaskError:
        return TaskError(
            f"{self._module}.py has ended, and has not taken a batch from run.batches()",
            remedy="join with dtd.join(model, optimizer) and loop over run.batches(...)",
        )


def _fitted(spec: JobSpec, settings: Mapping[str, Any], module: str) -> JobSpec:
    """Return the job with a script's numbers.

    Raises:
        TaskError: a setting of the script is one that the coordinator has to know before.
    """
    tables = to_mapping(spec)
    for name, values in tables_of(dict(settings)).items():
        if name in _ITS_OWN:
            tables[name] |= values
            continue
        for key, value in values.items():
            if tables.get(name, {}).get(key) != value:
                raise TaskError(
                    f"{module}.py asks for {name}.{key} = {value!r}, which is not the job's",
                    remedy=f"submit it with --set {name}.{key}={value}",
                )
    return from_mapping(tables, source=f"{module}.py")
