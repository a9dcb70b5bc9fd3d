"""dtdctl against a scripted coordinator, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dtd.ctl.main import run


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Times of day are shown in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def status() -> dict[str, Any]:
    """A healthy status: two workers train."""
    job = {
        "id": "digits-1",
        "name": "digits",
        "state": "running",
        "generation": 2,
        "world_size": 2,
        "step": 120,
        "total_steps": 600,
        "epoch": 3,
        "loss": 0.1234567,
        "samples_per_s": 2345.0,
        "steps_lost": 0,
        "reason": "",
        "explain": "",
        "eval": {"accuracy": 0.95},
    }
    return {
        "schema": 1,
        "coordinator": {"address": "127.0.0.1:7117", "uptime_s": 192.0, "version": "0.1.0"},
        "job": job,
        "jobs": [job],
        "workers": [
            {
                "name": f"worker-{rank}",
                "pid": 100 + rank,
                "state": "running",
                "rank": rank,
                "host": "localhost",
                "device": "cpu",
                "step": 120,
                "last_heartbeat_s": 0.21,
                "reason": "",
                "samples_per_s": 1172.5,
                "compute_s": 0.01,
            }
            for rank in range(2)
        ],
        "queue": ["digits-2"],
        "explain": "",
    }


@pytest.fixture
def dtdctl(server, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line against the scripted server; (exit code, stdout, stderr)."""
    monkeypatch.setenv("DTD_COORDINATOR", str(server.control))
    monkeypatch.setenv("NO_COLOR", "1")

    def command(*arguments: str) -> tuple[int, str, str]:
        exit_code = run(arguments)
        out, err = capsys.readouterr()
        return exit_code, out, err

    return command


@pytest.fixture
def spec():
    """The job file, as the coordinator tells it."""
    return {"job": {"task": "digits"}, "task": {"hidden": 16}}
