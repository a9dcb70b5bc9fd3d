"""The W&B sink, offline: what can be read in the files that W&B itself wrote."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dtd.job.terms import folder_of
from dtd.observe.sinks.entries import Began, Ended, Figures
from dtd.observe.sinks.wandb import WandbSink, make

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="needs the package wandb")

BLOCK_BYTES = 32768
HEAD_BYTES = 7
PATIENCE_S = 60.0
LAST_OF_A_RECORD = (1, 4)


@pytest.fixture(scope="module", autouse=True)
def service() -> Iterator[None]:
    """One W&B service for all tests; it is stopped and leaves nothing."""
    before = dict(os.environ)
    yield
    import wandb

    wandb.teardown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A directory for each test: which tests ran in this process before, and how far W&B is with
    their files, is a matter of chance."""
    return tmp_path


@pytest.fixture
def sink(state_dir: Path) -> WandbSink:
    return make({"directory": str(state_dir), "project": "trials"})


def records(path: Path) -> Iterator[Any]:
    """The records of W&B's file: blocks of 32 KiB with parts of them, as in LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = path.read_bytes(), HEAD_BYTES, b""
    assert data.startswith(b":W&B")
    while at + HEAD_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEAD_BYTES:
            at += left
            continue
        _checksum, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + HEAD_BYTES : at + HEAD_BYTES + size]
        at += HEAD_BYTES + size
        if kind in LAST_OF_A_RECORD:
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


class Run:
    """The content of a job's newest file."""

    def __init__(self, state_dir: Path, job: str) -> None:
        files = sorted(
            (state_dir / "wandb").glob(f"offline-run-*/run-{folder_of(job, 'abc')}.wandb")
        )
        self.files = len(files)
        self.history: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        for record in records(files[-1]):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config = {
                    one.key: json.loads(one.value_json) for one in record.run.config.update
                }
            elif kind == "history":
                self.history.append(_items(record.history.item))
            elif kind == "summary":
                self.summary |= _items(record.summary.update)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code


def finished(state_dir: Path, job: str) -> Run:
    """The same when W&B's own process has written the end of it, which it does when it likes."""
    until = time.monotonic() + PATIENCE_S
    while (run := Run(state_dir, job)).exit_code is None and time.monotonic() < until:
        pass
    return run


def _items(items: Any) -> dict[str, Any]:
    return {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in items}


def began(job: str) -> Began:
    tags = {"dtd.task": "digits"}
    settings = {"optimizer.lr": "0.1"}
    return Began(job=job, identity="abc", unix_s=1.0, settings=settings, tags=tags)


def figures(job: str, step: int, **scalars: float) -> Figures:
    return Figures(job=job, step=step, unix_s=100.0 + step, scalars=scalars)


def ended(job: str, state: str) -> Ended:
    return Ended(job=job, identity="abc", unix_s=9.0, state=state, result={"steps": 2.0})


def test_jobs_are_runs_with_their_figures(sink, state_dir) -> None:
    """Two at once, since a job may end when the next one has begun."""
    for job in ("j-1", "j-2"):
        sink.begin(began(job))
    sink.figures("j-1", [figures("j-1", 1, loss=0.5), figures("j-1", 2, loss=0.25)])
    sink.figures("j-2", [figures("j-2", 7, loss=1.0)])
    sink.figures("j-1", [figures("j-1", 2, accuracy=0.75), figures("j-1", 1, loss=9.0)])
    sink.end(ended("j-1", "done"))
    sink.end(ended("j-2", "failed"))
    first, second = finished(state_dir, "j-1"), finished(state_dir, "j-2")
    assert (first.run.project, first.run.display_name) == ("trials", "j-1")
    assert first.run.run_id == folder_of("j-1", "abc")
    assert (first.config["optimizer.lr"], first.config["dtd.task"]) == ("0.1", "digits")
    assert [(one["_step"], one["loss"]) for one in first.history] == [(1, 0.5), (2, 0.25)]
    assert first.history[1]["accuracy"] == 0.75
    assert (first.summary["final/steps"], first.summary["state"]) == (2.0, "done")
    assert (first.exit_code, second.exit_code) == (0, 1)
    assert [one["_step"] for one in second.history] == [7]
    assert not list((state_dir / "wandb").glob("*/files/requirements.txt"))
    listed = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run", "--yes"],
        capture_output=True,
        text=True,
        cwd=state_dir,
        env={name: value for name, value in os.environ.items() if name != "WANDB_SILENT"},
        check=False,
        timeout=PATIENCE_S,
    )
    told = listed.stdout + listed.stderr
    assert "Would sync 2 run(s)" in told
    for job in ("j-1", "j-2"):
        assert f"run-{folder_of(job, 'abc')}.wandb" in told


def test_a_coordinator_that_starts_again_continues_the_run(sink, state_dir, monkeypatch) -> None:
    sink.begin(began("j-3"))
    sink.figures("j-3", [figures("j-3", 1, loss=0.5)])
    sink.close()
    assert [one["_step"] for one in finished(state_dir, "j-3").history] == [1]
    known = {one.name for one in (state_dir / "wandb").iterdir()}
    again = make({"directory": str(state_dir), "project": "trials"})
    again.begin(began("j-3"))
    again.figures("j-3", [figures("j-3", 2, loss=0.25)])
    again.end(ended("j-3", "done"))
    newest = finished(state_dir, "j-3")
    assert newest.run.run_id == folder_of("j-3", "abc")
    assert newest.history[-1]["_step"] == 2
    made = {one.name for one in (state_dir / "wandb").iterdir()} - known
    assert made or newest.files == 1
