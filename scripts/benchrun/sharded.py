"""`scripts/bench sharded`: steps of dtd's sharded state against replicated training and torch's.

Over slow links, parameter servers whose own links are ten times as fast are compared with the ring.

All sides take turns in blocks of steps, as in `scripts.benchrun.sides`: real daemons, a job
for each stage; DDP with ZeroRedundancyOptimizer, and FSDP2, both over Gloo; and `apart`, processes
that never talk.  All use AdamW.  What memory each side has at its peak is noted beside its steps.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from dtd.errors import UsageError
from dtd.job.strategy_table import SHARDED_STAGES
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record
from scripts.benchrun.sides import Sides, SidesCase, hosts_of, measured, run_all, torch_block
from scripts.benchrun.workloads import FSDP, FSDP_KEEPS, GIGABIT, WORKLOADS, ZERO

KIND: Final = "sharded"
KEY: Final = ("workload", "link", "world")
ROUNDS: Final = 5
WORLDS: Final = (2, 4)
BUCKETS_MIB: Final = (4, 25)
"""Tried for DDP."""
REPLICATED: Final = "dtd replicated"
TORCH: Final[Mapping[str, str]] = {
    "DDP + ZeRO": ZERO,
    "FSDP2": FSDP,
    "FSDP2, parameters kept": FSDP_KEEPS,
}
"""Divisions of `scripts.benchrun.torch_side`, by name of the side."""
SERVED: Final[Mapping[str, int]] = {"dtd, 1 server": 1, "dtd, 2 servers": 2}
"""Sides with so many parameter servers, on hosts of their own."""
SLOW: Final = "100mbit"
SERVERS_LINK: Final = GIGABIT
_TRIAL_STEPS: Final = 3
_CHOSEN: Final = "paced-16"
_CHOSEN_SLOW: Final = "paced-small"
_SLOW_WORLD: Final = 4


def stages() -> dict[str, dict[str, Any]]:
    """Return the sides of dtd with their `[strategy]` tables."""
    made: dict[str, dict[str, Any]] = {REPLICATED: {}}
    for stage in SHARDED_STAGES:
        made[f"dtd stage {stage}"] = {"name": "sharded", "stage": stage}
    served = {"name": "sharded", "owners": "servers"}
    return made | dict.fromkeys(SERVED, served)


def sides() -> tuple[str, ...]:
    """Return all sides in the order of the table."""
    return (*stages(), *TORCH)


def sides_over(link: str) -> tuple[str, ...]:
    """Return the sides that are compared unless others are asked for."""
    if link == SLOW:
        return (REPLICATED, "dtd stage 1", *SERVED)
    return tuple(side for side in sides() if side not in SERVED)


def measure(case: SidesCase) -> Record:
    """Measure all sides of a case."""
    return measured(
        case,
        worlds={side: partial(_divided, how) for side, how in TORCH.items()},
        runs={
            side: partial(_daemons, case, table, SERVED.get(side, 0))
            for side, table in stages().items()
        },
        steps_of=lambda _side: case.workload.block_steps,
        about=_about,
    )


def _about(sides: Sides) -> Record:
    peaks = {side: run.peak_bytes() for side, run in sides.runs.items()}
    peaks |= {side: world.peak_bytes() for side, world in sides.worlds.items()}
    return {
        "step_bytes": sides.step_bytes(),
        "peak_bytes": {side: round(statistics.fmean(peak)) for side, peak in peaks.items()},
        "torch": sides.choices,
    }


def _daemons(
    case: SidesCase, table: Mapping[str, Any], servers: int, stack: contextlib.ExitStack
) -> DaemonRun:
    names = [f"server-{number}" for number in range(servers)]
    hosts = hosts_of(case, stack, names, dict.fromkeys(names, SERVERS_LINK))
    return DaemonRun(case.workload, case.workers, hosts, case.rounds + 1, table, names)


def _divided(how: str, world: World) -> dict[str, Any]:
    """Divide the model of every rank, with the bucket size with which DDP is fastest here."""
    if how != ZERO:
        world.ask("divide", how=how, bucket_mib=0)
        return {}
    trials: list[dict[str, Any]] = []
    for bucket_mib in BUCKETS_MIB:
        world.ask("divide", how=how, bucket_mib=bucket_mib)
        trials.append({"bucket_mib": bucket_mib, "step_s": torch_block(world, _TRIAL_STEPS)})
    best = min(trials, key=lambda trial: float(trial["step_s"]))
    world.ask("divide", how=how, bucket_mib=best["bucket_mib"])
    return {"bucket_mib": best["bucket_mib"], "trials": trials}


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case.

    Raises:
        UsageError: the links cannot be made here, or there is no such workload or side.
    """
    run_all(KIND, KEY, list(cases(options)), measure, options)


def cases(options: argparse.Namespace) -> Iterator[SidesCase]:
    """Return what to measure.

    Raises:
        UsageError: there is no such workload or side.
    """
    for side in options.sides or ():
        if side not in sides():
            raise UsageError(f"no side {side}", remedy=f"one of {', '.join(sides())}")
    for name in options.workloads or (_CHOSEN, _CHOSEN_SLOW):
        workload = WORKLOADS.get(name)
        if workload is None:
            raise UsageError(f"no workload {name}", remedy=f"one of {', '.join(WORKLOADS)}")
        link = SLOW if name == _CHOSEN_SLOW else GIGABIT
        usual = (_SLOW_WORLD,) if link == SLOW else WORLDS
        for world in options.worlds or (usual[:1] if options.quick else usual):
            yield SidesCase(
                name=name,
                workload=dataclasses.replace(workload, optimizer={"name": "adamw"}),
                link=link,
                world=world,
                rounds=options.rounds or (1 if options.quick else ROUNDS),
                sides=options.sides or sides_over(link),
            )
