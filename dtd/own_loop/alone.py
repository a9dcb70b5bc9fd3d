"""A loop that is trained in its own process, without a coordinator: a ring of one rank.

State, checkpoints and resumption are those of a job.  Checkpoints lie in `.dtd/NAME` unless the
settings name another directory; a loop that is started again goes on from the newest.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any, Final

import torch

from dtd.errors import CheckpointError, LoopLeft
from dtd.exchange.in_process import InProcessRing
from dtd.job import from_mapping
from dtd.own_loop.task import LoopTask, UserLoop
from dtd.own_loop.turns import Turns
from dtd.train.record import EvalRecord, Reporter
from dtd.train.run import JobSessionRunner

DIRECTORY: Final = Path(".dtd")


def tables_of(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return settings by "table.key" as the tables of a job file."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        table, _, key = name.partition(".")
        tables.setdefault(table, {})[key] = value
    return tables


class Alone:
    """Trains one loop on a thread of this process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def begin(self, loop: UserLoop, turns: Turns) -> LoopTask:
        """Begin to train; returns at once.

        Raises:
            JobSpecError: a setting is wrong.
        """
        task = LoopTask(loop, turns, ended=lambda: None)
        settings = {**loop.settings, "job.name": self._name, "job.task": "script:__main__"}
        spec = from_mapping(tables_of(settings), source="dtd.join()")
        task.precision = spec.train.precision
        runner = JobSessionRunner(
            spec=spec,
            job_id=self._name,
            init_from=None,
            device=str(next(loop.model.parameters()).device),
            state_dir=DIRECTORY / self._name,
            reporter=_Console(),
            threads=torch.get_num_threads(),
            load=lambda spec: (task, spec),
        )
        self._thread = threading.Thread(
            target=self._train, args=(runner, task, turns), name="trainer", daemon=True
        )
        self._thread.start()
        return task

    def close(self) -> None:
        """Wait until a loop that was left is saved."""
        if self._thread is not None:
            self._thread.join()

    def _train(self, runner: JobSessionRunner, task: LoopTask, turns: Turns) -> None:
        try:
            runner.prepare()
            held = runner.held()
            if held.step:
                say(f"{self._name} goes on from {held.label}")
            runner.adopt_local(held.generation, held.step)
            generation = held.generation + 1
            ring = InProcessRing(1, generation=generation, first_step=held.step)
            runner.run(ring.collective(0), generation)
        except LoopLeft:
            self._save(runner)
        except BaseException as error:  # noqa: BLE001 - it is the loop's to see
            turns.fail(error)
        finally:
            runner.close()

    def _save(self, runner: JobSessionRunner) -> None:
        """Save the last committed step, if it is not saved yet."""
        held = runner.held()
        if held.where == "memory" and held.step:
            with contextlib.suppress(CheckpointError):  # it was told of
                runner.save(held.generation, held.step)
                say(f"{self._name} is saved after step {held.step}: start it again to go on")


class _Console(Reporter):
    """Reports only what a user has to know."""

    def evaluated(self, record: EvalRecord) -> None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items())
        say(f"evaluation after step {record.step}: {figures}")

    def warning(self, event: str, message: str) -> None:
        say(message)


def say(line: str) -> None:
    """Tell the user, who has no log."""
    print(f"dtd: {line}", file=sys.stderr, flush=True)  # noqa: T201 - it has no log
