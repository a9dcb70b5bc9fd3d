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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dtd.errors import UsageError
from scripts.benchrun.daemons import PARTS, DaemonRun
from scripts.benchrun.places import ShapedHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record, in_turn, keep, machine
from scripts.benchrun.train import Turn, built, synchronise, torch_block
from scripts.benchrun.workloads import PACED_RESNET, WORKLOADS, Workload, job_of

KIND: Final = "strategies"
KEY: Final = ("workload", "link", "world")
ROUNDS: Final = 3
QUICK_ROUNDS: Final = 1
BUCKETS_MIB: Final = (4, 25, 100)
"""Tried for DDP."""
APART: Final = "apart"
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
"""See `scripts.benchrun.torch_side`."""
SIDES: Final = (*STRATEGIES, *HOOKS)
_LONG_STEPS: Final = 3
_ROUNDS_A_BLOCK: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What to measure.

    Attributes:
        name: of the workload.
        workload: what is trained.
        link: how the workers are joined.
        world: number of workers.
        rounds: how often each side has its turn, after one to warm up.
        sides: those that are compared.
    """

    name: str
    workload: Workload
    link: str
    world: int
    rounds: int
    sides: Sequence[str]

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return [f"worker-{rank}" for rank in range(self.world)]

    @property
    def spec(self) -> dict[str, Any]:
        """The job as plain torch sees it: without gates."""
        return job_of(self.workload, steps=1, gates="", holds=[])


def block_steps(strategy: Mapping[str, Any], usual: int) -> int:
    """Steps of a block: as many as usual, or whole rounds of local steps."""
    if strategy.get("name") == "streaming_diloco":
        return int(strategy["inner_steps"]) // int(strategy["fragments"]) * _ROUNDS_A_BLOCK
    return int(strategy.get("inner_steps", usual))


def measure(case: Case) -> Record:
    """All sides of a case."""
    with contextlib.ExitStack() as stack:
        hosts = hosts_of(case, stack)
        worlds: dict[str, World] = {}
        choices: dict[str, dict[str, Any]] = {}
        for side in (*(one for one in HOOKS if one in case.sides), APART):
            # Memory is kept on both sides: what is compared here is the wire.
            worlds[side] = stack.enter_context(
                built(hosts, case.world, case.spec, keeps_memory=True)
            )
            if side in HOOKS:
                choices[side] = _tuned(worlds[side], HOOKS[side])
                synchronise(worlds[side], choices[side], HOOKS[side])
        runs = {
            side: stack.enter_context(_daemons(case, side, stack))
            for side in STRATEGIES
            if side in case.sides
        }
        steps_s = in_turns(case, runs, worlds)
        step_bytes = {
            side: statistics.fmean(block.sent_bytes for block in run.blocks[1:])
            for side, run in runs.items()
        }
        parts_s = {side: _parts_s(run) for side, run in runs.items()}
        step_bytes |= {side: _sent_bytes(worlds[side]) for side in choices}
    return {
        "workload": case.name,
        "what": case.workload.what,
        "rows": case.workload.rows,
        "link": case.link,
        "world": case.world,
        "steps_s": steps_s,
        "step_bytes": step_bytes,
        "parts_s": parts_s,
        "ddp": choices,
    }


def hosts_of(case: Case, stack: contextlib.ExitStack) -> ShapedHosts:
    """A host for each worker, joined by the case's links."""
    return stack.enter_context(contextlib.closing(ShapedHosts(case.workers, case.link)))


def _daemons(
    case: Case, side: str, stack: contextlib.ExitStack
) -> contextlib.AbstractContextManager[DaemonRun]:
    strategy = STRATEGIES[side]
    steps = block_steps(strategy, _usual_steps(case, side))
    workload = dataclasses.replace(case.workload, block_steps=steps)
    # Every worker has a data port, and a host has one of that number.
    hosts = hosts_of(case, stack)
    return contextlib.closing(DaemonRun(workload, case.workers, hosts, case.rounds + 1, strategy))


def _usual_steps(case: Case, side: str) -> int:
    """A step of all bytes takes seconds over a slow link."""
    wide = side in ("float32", "bfloat16", "DDP", "DDP bf16")
    slow = wide and case.link == "100mbit"
    return min(case.workload.block_steps, _LONG_STEPS) if slow else case.workload.block_steps


def in_turns(
    case: Case, runs: Mapping[str, DaemonRun], worlds: Mapping[str, World]
) -> dict[str, list[float]]:
    """Each side once to warm up, then A B ... B A."""
    turns: dict[str, Turn] = {side: partial(_daemon_block, run) for side, run in runs.items()}
    turns |= {
        side: partial(torch_block, world, _usual_steps(case, side))
        for side, world in worlds.items()
    }
    for turn in turns.values():
        turn()
    steps_s: dict[str, list[float]] = {side: [] for side in turns}
    for number in range(case.rounds):
        for side in in_turn([*turns], number):
            steps_s[side].append(turns[side]())
    return steps_s


def _daemon_block(run: DaemonRun) -> float:
    return run.block().step_s


def _parts_s(run: DaemonRun) -> dict[str, float]:
    """Where rank 0's steps go, medians over blocks."""
    return {
        part: statistics.median(block.parts_s[part] for block in run.blocks[1:]) for part in PARTS
    }


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
    """What a rank of DDP gives its neighbour in a step, if the ring is as good as rings can be."""
    payload_bytes: float = world.ask("payload_bytes")[0]
    return 2 * (world.size - 1) / world.size * payload_bytes


# --- all cases ------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case.

    Raises:
        UsageError: the links cannot be made here, or there is no such workload or side.
    """
    chosen = list(cases(options))
    if not own_network():
        raise UsageError(
            "no network namespaces here, so no links of a known rate",
            remedy="run it as root, or where users may make namespaces",
        )
    about = machine()
    for case in chosen:
        record = measure(case)
        keep(KIND, [{**record, "machine": about}], KEY, options, sides_line(record))


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """What to measure.

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
                yield Case(
                    name=name,
                    workload=dataclasses.replace(workload, block_steps=PACED_RESNET.block_steps),
                    link=link,
                    world=world,
                    rounds=options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
                    sides=sides,
                )


def sides_line(record: Record) -> str:
    """The case and the median step of each side."""
    times = ", ".join(
        f"{side} {1000 * statistics.median(steps_s):.0f} ms"
        for side, steps_s in record["steps_s"].items()
    )
    return f"{record['workload']} {record['link']} N={record['world']}: {times}"
