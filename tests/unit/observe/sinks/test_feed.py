"""A sink's process from the coordinator's side: nothing waits for it, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dtd.cluster.records import Job, JobState
from dtd.config import CoordinatorConfig, load_coordinator_config
from dtd.errors import ConfigError
from dtd.job import parse_job, to_mapping
from dtd.observe.sinks import trackers as module
from dtd.observe.sinks.entries import Figures
from dtd.observe.sinks.trackers import (
    MAX_PIPE_BYTES,
    Feed,
    Trackers,
)
from dtd.wire import messages as m
from tests.unit.observe.reports import progress as report

SPEC = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 64
[task]
limit = 7
api_token = "marker-secret"
"""


class Operators:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.news = asyncio.Event()

    def incident(self, kind: str, message: str, *, worker: str = "", **details: Any) -> None:
        self.told.append((kind, message))
        self.news.set()


def figures(step: int, text: str = "") -> Figures:
    return Figures(job="j-1", step=step, unix_s=1.0, scalars={f"train/loss{text}": 0.5})


@contextlib.asynccontextmanager
async def running(feed: Feed):
    task = asyncio.create_task(feed.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def started(monkeypatch) -> asyncio.Queue[Any]:
    """Processes that were started."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    start = asyncio.create_subprocess_exec

    async def remembered(*arguments: Any, **options: Any) -> Any:
        process = await start(*arguments, **options)
        queue.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remembered)
    return queue


async def test_a_sink_that_cannot_begin_is_reported_once_and_tried_again(
    monkeypatch, started
) -> None:
    monkeypatch.setattr(module, "RESTART_AFTER_S", 0.0)
    operators = Operators()
    feed = Feed({"sink": "nothing"}, operators.incident)
    async with asyncio.timeout(60), running(feed):
        first, second = await started.get(), await started.get()
        assert first.pid != second.pid
        assert operators.news.is_set()
    assert operators.told == [
        ("tracking_failed", "figures do not reach nothing, training continues: KeyError")
    ]
    assert feed.failing == "KeyError"


async def test_a_process_that_does_not_read_costs_figures_and_is_killed(
    monkeypatch, started
) -> None:
    monkeypatch.setattr(module, "END_WITHIN_S", 0.05)
    feed = Feed({"sink": "nothing"}, Operators().incident)
    async with asyncio.timeout(60), running(feed):
        process = await started.get()
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.sleep(0)  # the feed takes it over
        for step in range(200):
            feed.tell(figures(step, "x" * 20_000))
        assert process.stdin is not None
        assert process.stdin.transport.get_write_buffer_size() < MAX_PIPE_BYTES + 30_000
        assert 100 < feed.dropped < 200
    assert process.returncode == -signal.SIGKILL


@pytest.fixture
def config(tmp_path: Path) -> CoordinatorConfig:
    return CoordinatorConfig(state_dir=tmp_path, socket=tmp_path / "s", mlflow="http://127.0.0.1:1")


@pytest.fixture
def told(monkeypatch) -> list[Any]:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    entries: list[Any] = []
    monkeypatch.setattr(Feed, "tell", lambda self, entry: entries.append(entry))
    return entries


def job(job_id: str = "digits-1") -> Job:
    spec = to_mapping(parse_job(SPEC, source="test"))
    return Job(id=job_id, spec=spec, identity="abc", package="p" * 64)


def progress(step: int, job_id: str = "digits-1") -> m.Progress:
    return report(job=job_id, step=step)


def test_a_job_is_told_of_with_its_settings_but_no_secrets(config, told) -> None:
    trackers = Trackers(config, lambda action: None, Operators().incident, wall=lambda: 5.0)
    active = job()
    active.spec["task"] |= {"seed": 2**60, "wide": True, "name": "x" * 900, "sizes": [1, 2]}
    trackers.reported(active, progress(1))
    trackers.reported(active, progress(2))
    trackers.reported(active, progress(3, "another"))  # not the active job
    trackers.reported(None, progress(4))
    ended = job()
    ended.state, ended.result = JobState.DONE, {"steps": 2, "ended_early": "why", "x": None}
    ended.metrics = {"f1": 0.75, "bad": None}
    trackers.ended(ended)
    began, first, second, last = told
    assert (began.job, began.identity, began.unix_s) == ("digits-1", "abc", 5.0)
    assert began.settings["task.limit"] == 7
    assert began.settings["task.wide"] is True
    assert began.settings["task.seed"] == str(2**60)
    assert began.settings["task.sizes"] == "[1, 2]"
    assert len(str(began.settings["task.name"])) == 500
    assert "job.steps" not in began.settings  # the job names epochs
    assert began.settings["job.task"] == "digits"
    assert began.settings["task.api_token"] == "(not passed on)"
    assert began.tags == {"dtd.task": "digits", "dtd.package": "p" * 64}
    assert (first.step, second.step, first.scalars["train/loss"]) == (1, 2, 0.5)
    assert (last.state, last.result) == ("done", {"steps": 2.0, "eval_f1": 0.75})


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("http://127.0.0.1:5000", True),
        ("https://tracking.example.org/mlflow/", True),
        ("http://[::1]:5000", True),
        ("http://user:marker@host:5000", False),
        ("http://host:5000/?token=marker", False),
        ("ftp://marker", False),
        ("marker", False),
    ],
)
def test_an_address_has_no_secrets_and_is_not_repeated(tmp_path, address, good) -> None:
    flags = {"state_dir": str(tmp_path), "mlflow": address}
    if good:
        assert load_coordinator_config(flags, {}, default_file=tmp_path / "no").mlflow == address
        return
    with pytest.raises(ConfigError, match="mlflow: must be http") as caught:
        load_coordinator_config(flags, {}, default_file=tmp_path / "no")
    assert "marker" not in str(caught.value)
