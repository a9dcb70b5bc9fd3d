"""Consumers of jobs' figures: TensorBoard's files, and the sinks that are enabled.

A point that cannot be passed on is dropped; nothing here is waited for.  MLflow and W&B have a
process each (`dtd.observe.sinks.process`), fed through a pipe; what that does not take at once is
dropped and counted.  A process that ends is started again, ever less often, and learns of the
running jobs then.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dtd.cluster.records import Job
from dtd.config import CoordinatorConfig
from dtd.errors import ConfigError
from dtd.job.differences import settings, shown_value
from dtd.logs import is_secret
from dtd.observe.sinks.entries import TENSORBOARD, Began, Ended, Entry, Figures, to_line
from dtd.observe.sinks.tensorboard import Curves
from dtd.text.shown import one_line
from dtd.wire import messages as m

MAX_PIPE_BYTES: Final = 1024 * 1024
MAX_REMARK_BYTES: Final = 16 * 1024
RESTART_AFTER_S: Final = 5.0
RESTART_AT_MOST_AFTER_S: Final = 300.0
TOLD_EVERY_S: Final = 60.0
END_WITHIN_S: Final = 4.0


class Feed:
    """One sink's process.

    Attributes:
        dropped: entries that did not reach the process.
        failing: why the sink does not work at present; empty if it does.
    """

    def __init__(self, settings: Mapping[str, Any], tell_operators: Callable[..., None]) -> None:
        self._settings = settings
        self._tell_operators = tell_operators
        self._process: asyncio.subprocess.Process | None = None
        self._running: dict[str, Began] = {}
        self._told_s = -TOLD_EVERY_S
        self.name: str = settings["sink"]
        self.dropped = 0
        self.failing = ""

    def tell(self, entry: Entry) -> None:
        """Queue an entry; figures are dropped if the queue is full."""
        if isinstance(entry, Began):
            self._running[entry.job] = entry
        elif isinstance(entry, Ended):
            self._running.pop(entry.job, None)
        self._write(to_line(entry), may_drop=isinstance(entry, Figures))

    def _write(self, line: bytes, *, may_drop: bool = False) -> None:
        stream = self._process.stdin if self._process is not None else None
        if (
            stream is None
            or stream.is_closing()
            or (may_drop and stream.transport.get_write_buffer_size() > MAX_PIPE_BYTES)
        ):
            self.dropped += 1
            return
        stream.write(line)

    async def run(self) -> None:
        pause_s = RESTART_AFTER_S
        while True:
            begun_s = time.monotonic()
            await self._serve()
            lived_s = time.monotonic() - begun_s
            pause_s = RESTART_AFTER_S if lived_s > RESTART_AT_MOST_AFTER_S else 2 * pause_s
            await asyncio.sleep(min(pause_s, RESTART_AT_MOST_AFTER_S))

    async def _serve(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "dtd.observe.sinks.process"),
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
            self._tell_operators(
                "tracking_failed",
                f"figures do not reach {self.name}, training continues: {why}",
                sink=self.name,
            )

    def _works(self, dropped: int) -> None:
        if self.failing:
            self.failing = ""
            self._tell_operators(
                "tracking_resumed",
                f"figures reach {self.name} again; {dropped + self.dropped} entries were dropped",
                sink=self.name,
                dropped=dropped + self.dropped,
            )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the process's input, and wait for its end for a limited time."""
    if process.stdin is not None:
        process.stdin.close()
    # Not asyncio.timeout: before Python 3.11.3 it raises CancelledError where that has been caught.
    ended = asyncio.ensure_future(process.wait())
    await asyncio.wait({ended}, timeout=END_WITHIN_S)
    if not ended.done():
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await ended


FIRST_SPACING_S: Final = 0.1
THINNED_EVERY: Final = 20_000
"""Points after which those of a job come half as often."""
MAX_SCALARS: Final = 64
"""Most metrics of an evaluation that are passed on."""

MAX_TEXT_CHARACTERS: Final = 500
_EXACT: Final = 2**53
"""Larger integers are told as text: a float would round them."""

PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "mlflow": ("mlflow", "mlflow-skinny"),
    "wandb": ("wandb", "wandb"),
}
"""The module that each sink needs, and the package that has it."""


def sinks_of(config: CoordinatorConfig) -> list[dict[str, Any]]:
    """Return the settings of each enabled sink.

    Raises:
        ConfigError: its package is not installed.
    """
    found: list[dict[str, Any]] = []
    if config.mlflow:
        found.append(
            {"sink": "mlflow", "address": config.mlflow, "experiment": config.mlflow_experiment}
        )
    if config.wandb == "offline":
        directory = str(config.state_dir)
        found.append({"sink": "wandb", "directory": directory, "project": config.wandb_project})
    for one in found:
        module, package = PACKAGES[one["sink"]]
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{one['sink']} is set, and the package {package} is not installed here",
                remedy=f"type: {sys.executable} -m pip install {package}",
            )
    return found


class Trackers:
    """All consumers of a coordinator's figures; used on the event loop only.

    `later` runs a function in the store's thread, for TensorBoard's files.

    Raises:
        ConfigError: a sink's package is not installed.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        later: Callable[[Callable[[], None]], None],
        tell_operators: Callable[..., None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._curves = Curves(config.state_dir / TENSORBOARD, later)
        self._feeds = [Feed(one, tell_operators) for one in sinks_of(config)]
        self._wall = wall
        self._followed: dict[str, Thinner] = {}

    def reported(self, job: Job | None, message: m.Progress | m.Evaluated) -> None:
        """Pass on figures that a worker has reported of its active job, if it has one."""
        if job is None or job.id != message.job:
            return
        figures = figures_of(message, self._wall())
        if job.id not in self._followed:
            self._followed[job.id] = Thinner()
            self._tell(_began(job, figures.unix_s))
        if self._followed[job.id].takes(figures):
            self._tell(figures)

    def ended(self, job: Job) -> None:
        self._followed.pop(job.id, None)
        self._tell(_ended(job, self._wall()))

    def _tell(self, entry: Entry) -> None:
        self._curves.add(entry)
        for feed in self._feeds:
            feed.tell(entry)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for feed in self._feeds:
                tasks.create_task(feed.run())

    def close(self) -> None:
        """Write queued points to files; in the store's thread."""
        self._curves.close()


@dataclass(slots=True)
class Thinner:
    """Passes on ever fewer points of a long job, so that their number stays bounded."""

    count: int = 0
    last_s: float = 0.0

    def takes(self, figures: Figures) -> bool:
        """Whether figures are passed on; those of evaluations always are."""
        if not figures.regular:
            return True
        spacing_s = FIRST_SPACING_S * (2 ** (self.count // THINNED_EVERY) - 1)
        if 0 <= figures.unix_s - self.last_s < spacing_s:
            return False
        self.count, self.last_s = self.count + 1, figures.unix_s
        return True


def _began(job: Job, unix_s: float) -> Began:
    tags = {
        "dtd.task": job.spec.get("job", {}).get("task", ""),
        "dtd.package": job.package,
        "dtd.dataset_fingerprint": job.dataset_fingerprint,
        "dtd.dataset_rows": job.dataset_rows,
        "dtd.from_job": job.from_job,
    }
    return Began(
        job=job.id,
        identity=job.identity,
        unix_s=unix_s,
        settings=_settings(job),
        tags={name: str(value)[:MAX_TEXT_CHARACTERS] for name, value in tags.items() if value},
    )


def _settings(job: Job) -> dict[str, bool | float | str]:
    """Those of a job file that are set: numbers as numbers, others and secrets as short texts."""
    found: dict[str, bool | float | str] = {}
    for name, value in settings(job.spec).items():
        if is_secret(name.rpartition(".")[2]):
            found[one_line(name)] = "(not passed on)"
        elif isinstance(value, int | float) and abs(value) <= _EXACT:
            found[one_line(name)] = value
        elif value is not None:
            text = value if isinstance(value, str) else shown_value(value)
            found[one_line(name)] = text[:MAX_TEXT_CHARACTERS]
    return found


def figures_of(message: m.Progress | m.Evaluated, unix_s: float) -> Figures:
    """The figures of a report."""
    if isinstance(message, m.Progress):
        scalars = {
            "train/loss": message.loss,
            "train/learning_rate": message.learning_rate,
            "train/gradient_norm": message.grad_norm,
        }
        if message.step_s > 0:
            scalars["train/samples_per_s"] = message.rows / message.step_s
    else:
        named = {f"eval/{one_line(name)}": one for name, one in message.metrics.items()}
        numbers = [name for name in sorted(named) if isinstance(named[name], int | float)]
        scalars = {name: float(named[name]) for name in numbers[:MAX_SCALARS]}
    return Figures(
        job=message.job,
        step=message.step,
        unix_s=unix_s,
        scalars=scalars,
        regular=isinstance(message, m.Progress),
    )


def _ended(job: Job, unix_s: float) -> Ended:
    metrics = {f"eval_{name}": value for name, value in job.metrics.items()}
    known = {"steps": job.step, **metrics, **job.result}
    numbers = {k: float(v) for k, v in known.items() if isinstance(v, int | float)}
    return Ended(
        job=job.id, identity=job.identity, unix_s=unix_s, state=job.state.value, result=numbers
    )
