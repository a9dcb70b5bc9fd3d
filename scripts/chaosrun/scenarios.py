"""The chaos runs that docs/evaluation.md tells of, each one command.

A scenario is what a run begins with; options of the command line override it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dtd.job import parse_job, to_mapping
from scripts.chaosrun.faults import KINDS
from scripts.chaosrun.orders import REFERENCE

Pace = Literal["kills", "one by one", "mixed"]
NetworkKind = Literal["auto", "loopback", "proxied", "namespaced"]

_JOB: Final = """
[job]
name = "chaos"
global_batch_size = 64
[optimizer]
lr = 0.01
momentum = 0.9
[train]
eval_every = 40
[checkpoint]
every_steps = 25
[elastic]
settle_s = 0.0
"""
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "synthetic": {"parameters": 1_000_000, "rows": 2048, "layers": 4, "compute_ms": 20.0},
    "digits": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of run.

    Attributes:
        kinds: faults to choose from, or to go through.
        faults: how many.
        pace: how they follow each other.
        network: what the daemons are joined by; "auto" is the best that there is.
        load: busy processes beside the daemons, as a multiple of the processors.
        steps: of each job.
        away_s: how long the coordinator stays away; 0 is as chance has it.
    """

    kinds: tuple[str, ...]
    faults: int
    pace: Pace = "one by one"
    workers: int = 4
    minutes: float = 60.0
    network: NetworkKind = "loopback"
    load: float = 0.0
    steps: int = 1_000_000
    away_s: float = 0.0


SCENARIOS: Final[dict[str, Scenario]] = {
    "kill": Scenario(kinds=("kill",), faults=100, pace="kills"),
    "rejoin": Scenario(kinds=("kill",), faults=20),
    "hang": Scenario(
        kinds=("stop", "gil", "stuck", "link", "oneway", "partition"),
        faults=150,
        network="auto",
    ),
    "coordinator": Scenario(kinds=("coordinator",), faults=50),
    "away": Scenario(kinds=("coordinator_away",), faults=3, away_s=60.0),
    "soak": Scenario(
        kinds=tuple(KINDS),
        faults=300,
        pace="mixed",
        minutes=30.0,
        workers=5,
        network="auto",
        load=1.0,
        steps=6000,
    ),
}


def job_of(
    scenario: Scenario, *, task: str, orders: str, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """The job's mapping, ready to submit.

    Args:
        scenario: how long the job is.
        task: "synthetic" or another task that needs no arguments.
        orders: directory of the orders to misbehave.
        overrides: "table.key=value" settings.
    """
    words = [f"job.steps={scenario.steps}", f'job.task="{REFERENCE}"', *overrides]
    spec = to_mapping(parse_job(_JOB, source="chaos", overrides=words))
    spec["task"] = {
        "orders": orders,
        "task": task,
        "arguments": _ARGUMENTS.get(task, {}) | spec["task"],
    }
    return spec


def plan(scenario: Scenario, kinds: Sequence[str]) -> list[str]:
    """As many of each kind as of the others, in turn."""
    return [kinds[index % len(kinds)] for index in range(scenario.faults)]


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))
