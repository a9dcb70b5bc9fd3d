"""`scripts/bench strategies`: steps of dtd's strategies and codecs against DDP with its hooks.

All sides stand at the same time and take turns in blocks of steps, as in `scripts.benchrun.train`:
real daemons, a job for each strategy; DDP over Gloo as it is, with `bf16_compress_hook` and with
`powerSGD_hook`; and `apart`, processes that never talk.  What a step takes beyond `apart` is
communication that did not hide, with what the codec costs.  A block of local steps is whole rounds,
and a step of it is its share of them.
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
from scripts.benchrun.daemons import PARTS, DaemonRun
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record
from scripts.benchrun.sides import Sides, SidesCase, hosts_of, measured, run_all, torch_block
from scripts.benchrun.train import synchronise
from scripts.benchrun.workloads import PACED_RESNET, WORKLOADS, Workload

KIND: Final = "strategies"
KEY: Final = ("workload", "link", "world")
ROUNDS: Final = 3
QUICK_ROUNDS: Final = 1
BUCKETS_MIB: Final = (4, 25, 100)
"""Tried for DDP."""
CASES: Final[Mapping[str, Workload]] = {
    "paced-resnet18": PACED_RESNET,
    "resnet18-16": WORKLOADS["resnet18-16"],
}
STRATEGIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "float32": {},
    "bfloat16": {"codec": "bfloat16"},
    "int8": {"codec": "int8"},
    "PowerSGD rank 4": {"codec": "powersgd", "rank": 4},
    "top-k 1 %": {"codec": "top_k", "density": 0.01, "momentum": 0.9},
    "DiLoCo H = 32": {"name": "diloco", "inner_steps": 32},
    "streaming DiLoCo H = 32": {"name": "streaming_diloco", "inner_steps": 32, "fragments": 4},
}
"""Their `[strategy]` tables."""
HOOKS: Final[Mapping[str, str]] = {"DDP": "", "DDP bf16": "bfloat16", "DDP PowerSGD": "powersgd"}
"""Communication hooks of `scripts.benchrun.torch_side`, by name of the side."""
SIDES: Final = (*STRATEGIES, *HOOKS)
_LONG_STEPS: Final = 3
_ROUNDS_A_BLOCK: Final = 5


def block_steps(strategy: Mapping[str, Any], usual: int) -> int:
    """Steps of a block: as many as usual, or whole rounds of local steps."""
    if strategy.get("name") == "streaming_diloco":
        return int(strategy["inner_steps"]) // int(strategy["fragments"]) * _ROUNDS_A_BLOCK
    return int(strategy.get("inner_steps", usual))


def measure(case: SidesCase) -> Record:
    """All sides of a case."""
    return measured(
        case,
        worlds={side: partial(_synchronised, hook) for side, hook in HOOKS.items()},
        runs={side: partial(_daemons, case, side) for side in STRATEGIES},
        steps_of=partial(_usual_steps, case),
        about=_about,
    )


def _about(sides: Sides) -> Record:
    step_bytes = sides.step_bytes()
    step_bytes |= {side: _sent_bytes(sides.worlds[side]) for side in sides.choices}
    return {
        "step_bytes": step_bytes,
        "parts_s": {side: _parts_s(run) for side, run in sides.runs.items()},
        "ddp": sides.choices,
    }


def _daemons(case: SidesCase, side: str, stack: contextlib.ExitStack) -> DaemonRun:
    strategy = STRATEGIES[side]
    steps = block_steps(strategy, _usual_steps(case, side))
    workload = dataclasses.replace(case.workload, block_steps=steps)
    return DaemonRun(workload, case.workers, hosts_of(case, stack), case.rounds + 1, strategy)


def _usual_steps(case: SidesCase, side: str) -> int:
    """A step of all bytes takes seconds over a slow link."""
    wide = side in ("float32", "bfloat16", "DDP", "DDP bf16")
    slow = wide and case.link == "100mbit"
    return min(case.workload.block_steps, _LONG_STEPS) if slow else case.workload.block_steps


def _parts_s(run: DaemonRun) -> dict[str, float]:
    """Return the parts of rank 0's steps, as medians over blocks."""
    return {
        part: statistics.median(block.parts_s[part] for block in run.blocks[1:]) for part in PARTS
    }


def _synchronised(hook: str, world: World) -> dict[str, Any]:
    choice = _tuned(world, hook)
    synchronise(world, choice, hook)
    return choice


def _tuned(world: World, hook: str) -> dict[str, Any]:
    """The bucket size with which DDP is fastest here."""
    trials: list[dict[str, Any]] = []
    for bucket_mib in BUCKETS_MIB:
        trial: dict[str, Any] = {"bucket_mib": bucket_mib, "batched": False}
        synchronise(world, trial, hook)
        if hook == "powersgd":  # begins uncompressed
            torch_block(world, _LONG_STEPS)
        trials.append({**trial, "step_s": torch_block(world, _LONG_STEPS)})
    best = min(trials, key=lambda trial: float(trial["step_s"]))
    return {"bucket_mib": best["bucket_mib"], "batched": False, "trials": trials}


def _sent_bytes(world: World) -> float:
    """Return the bytes that a rank of DDP sends in a step, over an ideal ring."""
    payload_bytes: float = world.ask("payload_bytes")[0]
    return 2 * (world.size - 1) / world.size * payload_bytes


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case.

    Raises:
        UsageError: the links cannot be made here, or there is no such workload or side.
    """
    run_all(KIND, KEY, list(cases(options)), measure, options)


def cases(options: argparse.Namespace) -> Iterator[SidesCase]:
    """Yield the cases to measure.

    Raises:
        UsageError: there is no such workload, link or side.
    """
    sides = options.sides or SIDES
    for name in options.workloads or (next(iter(CASES)),):
        workload = CASES.get(name)
        if workload is None:
            raise UsageError(f"no workload {name}", remedy=f"one of {', '.join(CASES)}")
        for side in sides:
            if side not in SIDES:
                raise UsageError(f"no side {side}", remedy=f"one of {', '.join(SIDES)}")
        for link in options.links or PACED_RESNET.links:
            if link not in PACED_RESNET.links:
                raise UsageError(f"no link {link}", remedy=f"{' or '.join(PACED_RESNET.links)}")
            for world in options.worlds or ((2,) if options.quick else PACED_RESNET.worlds):
                yield SidesCase(
                    name=name,
                    workload=dataclasses.replace(workload, block_steps=PACED_RESNET.block_steps),
                    link=link,
                    world=world,
                    rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
                    sides=sides,
                )
