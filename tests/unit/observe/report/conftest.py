"""Answers of a coordinator about a job that was trained by two and by three workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dtd.job import parse_job, to_mapping
from dtd.observe.report.facts import Facts, facts_of

HOSTILE = "<script>alert(1)</script> & `x` | *y*"
SPEC = """
[job]
name = "digits"
task = "digits"
epochs = 2
global_batch_size = 60
[optimizer]
lr = 0.25
"""
STEPS = 100
MORE_WORKERS_FROM = 51


def details(job: str = "digits-1", **more: Any) -> dict[str, Any]:
    """As SHOW_JOB answers."""
    return {
        "id": job,
        "task": "digits",
        "state": "done",
        "reason": "",
        "submitted_s": 1000.0,
        "started_s": 1000.0,
        "ended_s": 1090.0,
        "step": STEPS,
        "total_steps": STEPS,
        "generation": 2,
        "world_size": 3,
        "workers": ["w-0", "w-1", "w-2"],
        "spec": to_mapping(parse_job(SPEC, source="test")),
        "result": {"steps": STEPS, "eval_accuracy": 0.97, "ended_early": HOSTILE},
        "steps_lost": 0,
        "dataset_rows": 1500,
        "dataset_fingerprint": "f" * 64,
        "package": "",
        "from_job": "",
        "from_step": 0,
        "environment": {"torch": "2.15.0", "gpu": HOSTILE},
        "note": HOSTILE,
        "checkpoints": [
            {
                "step": 100,
                "size_bytes": 4096,
                "worker": "w-0",
                "metrics": {"accuracy": 0.97},
                "verified": True,
                "confirmation": "verified",
            }
        ],
        **more,
    }


def event(kind: str, step: int = 0, job: str = "digits-1", **more: Any) -> dict[str, Any]:
    made = {
        "time_s": 1000.0 + step,
        "kind": kind,
        "job": job,
        "worker": "",
        "generation": 0,
        "step": step,
        "message": f"{kind} happened",
        "details": {},
    }
    return made | more


EVENTS = [
    event("job_started"),
    event("generation_running", generation=1, details={"world_size": 2}),
    event("worker_lost", 50, worker="w-2", message=HOSTILE),
    event(
        "recovered",
        50,
        worker="w-2",
        details={"detected_after_s": 0.5, "recovered_after_s": 1.5, "steps_redone": 1},
    ),
    event("generation_running", generation=2, details={"world_size": 3}),
    event("job_done", 100, job="another-7"),
]


def series(name: str, values: Callable[[int], float], kind: str = "steps", **more: str) -> Any:
    """The figures of each step, as GET_METRICS answers."""
    every = [(step, values(step)) for step in range(1, STEPS + 1)]
    points = [[step, step, 1, value, value, value] for step, value in every]
    return {"name": name, "kind": kind, "source": "", "to": "", "points": points, **more}


def of_generation(first: float, second: float) -> Callable[[int], float]:
    return lambda step: first if step < MORE_WORKERS_FROM else second


def metrics(**replaced: Callable[[int], float]) -> dict[str, Any]:
    """As GET_METRICS answers: 2 workers train 300 rows a second, 3 of them 360."""
    steps: dict[str, Callable[[int], float]] = {
        "loss": lambda step: 2.0 / step,
        "learning_rate": lambda step: 0.25,
        "gradient_norm": lambda step: 1.0 + 1.0 / step,
        "rows": lambda step: 60.0,
        "rows_per_s": of_generation(300.0, 360.0),
        "step_s": of_generation(0.2, 1 / 6),
        "comm_s": of_generation(0.05, 0.08),
        "exposed_s": of_generation(0.02, 0.06),
        "data_s": lambda step: 0.01,
        "sent_bytes": lambda step: 2048.0,
        "generation": of_generation(1.0, 2.0),
        "unix_s": lambda step: 1000.0 + 0.2 * step,
    }
    found = [series(name, values) for name, values in (steps | replaced).items()]
    evaluated = {"name": "eval/accuracy", "kind": "evaluations", "source": "", "to": ""}
    points = [(20, 0.5), (60, 0.98), (100, 0.97)]
    found.append(evaluated | {"points": [[at, at, 1, v, v, v] for at, v in points]})
    for name, own in (("w-0", 0.08), ("w-1", 0.08), ("w-2", 0.12)):
        figures = {
            "worker_step_s": 0.2,
            "worker_data_s": 0.01,
            "worker_compute_s": own - 0.02,
            "worker_exposed_s": 0.05,
            "worker_optimizer_s": 0.01,
            "memory_bytes": 2.0**20,
            "processor_cores": 0.5,
        }
        found += [
            series(key, lambda step, value=value: value, "worker", source=name)
            for key, value in figures.items()
        ]
    link = {"source": "w-0", "to": "w-1"}
    found.append(series("round_trip_s", lambda step: 0.001, "link", **link))
    found.append(series("link_bytes_per_s", lambda step: 1e6, "link", **link))
    return {"series": found, "stopped": "", "dropped": 0}


@pytest.fixture
def facts() -> Facts:
    return facts_of(details(), [metrics()], EVENTS)


@pytest.fixture
def alone() -> Facts:
    """The same job, trained by one worker: half as fast as two, no communication."""
    one = event("generation_running", job="alone-2", generation=1, details={"world_size": 1})
    figures = metrics(
        step_s=lambda step: 0.4,
        generation=lambda step: 1.0,
        exposed_s=lambda step: 0.0,
        comm_s=lambda step: 0.0,
        unix_s=lambda step: 5000.0 + 0.4 * step,
    )
    job = details("alone-2", generation=1, world_size=1, workers=["w-0"])
    return facts_of(job, [figures], [one])


@pytest.fixture
def untrained() -> Facts:
    job = details(
        "idle-3", state="failed", reason=HOSTILE, step=0, result={}, checkpoints=[], workers=[]
    )
    return facts_of(job, [], [])
