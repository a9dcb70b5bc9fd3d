"""`scripts/bench train`: whole steps of dtd's daemons against DDP over Gloo and against no sync.

A case is a workload, a link and a number of workers.

Five sides take turns in blocks of steps: `dtd` (real daemons), `ddp` (as fast as its options make
it here), `ddp-heap` (the same, in processes that keep freed memory as dtd's workers do:
`dtd.train.malloc_tuning`), `apart` (as many processes with the same share of rows that never talk,
so their step is pure computation) and `single` (one process with all rows); the last two keep their
memory, too.  Where bytes are dear there are two more, `dtd-bf16` and `ddp-bf16`, whose gradients
travel as bfloat16.  What a step takes beyond `apart` is synchronisation that did not hide.  Over
links of known speed there is also the floor (`scripts.benchrun.results`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.errors import UsageError
from scripts.benchrun.allreduce import fitting_iterations, join, measure_once
from scripts.benchrun.daemons import PARTS, DaemonRun, OneHost, Place, ShapedHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record, keep, machine, shaped_floor_s
from scripts.benchrun.sides import Case, built, in_turns, torch_block
from scripts.benchrun.workloads import (
    GIGABIT,
    LINKS,
    LOOPBACK,
    QUICK,
    WORKLOADS,
)
from scripts.cluster.networks import Loopback, Network

# --- one case -------------------------------------------------------------------------------------


_WIRE_S: Final = 0.15
_WIRE_TRIALS: Final = 3
_MANY_BYTES: Final = 16 * 1024 * 1024
_KEEP: Final = {"ddp-heap": True, "apart": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCase(Case):
    """A case to measure.

    Attributes:
        buckets_mib: sizes of buckets that are tried for DDP.
        bf16: whether dtd and DDP have a turn with bfloat16 on the wire, too.
    """

    buckets_mib: Sequence[int]
    bf16: bool = False

    @property
    def wires(self) -> dict[str, str]:
        """Suffix of a side's name for each `strategy.codec`."""
        return {"": "", "-bf16": "bfloat16"} if self.bf16 else {"": ""}


def measure(case: TrainCase) -> Record:
    """Everything that is to be known about a case."""
    with contextlib.ExitStack() as stack:
        place, network = _environment(case, stack)
        tuned = {f"ddp{name}": _tuned(case, place, wire) for name, wire in case.wires.items()}
        worlds = {
            side: stack.enter_context(built(place, case.world, case.spec, keeps_memory=keeps))
            for side, keeps in (*dict.fromkeys(tuned, False).items(), *_KEEP.items())
        }
        if case.world > 1:
            alone = built(OneHost(), 1, case.spec, keeps_memory=True)
            worlds["single"] = stack.enter_context(alone)
        for name, wire in case.wires.items():
            synchronise(worlds[f"ddp{name}"], tuned[f"ddp{name}"], wire)
        synchronise(worlds["ddp-heap"], tuned["ddp"], "")
        floor = _floor(place, worlds["apart"], case.workload.block_steps)
        daemons: dict[str, DaemonRun] = {}
        for name, wire in case.wires.items():
            # Every worker has a data port, and a host has one of that number.
            one_network = _environment(case, stack)[1] if daemons else network
            strategy = {"codec": wire} if wire else None
            run = DaemonRun(case.workload, case.workers, one_network, case.rounds + 1, strategy)
            daemons[f"dtd{name}"] = stack.enter_context(contextlib.closing(run))
        measured = _measured(case, daemons, worlds)
    return {
        **case.described,
        "floor": floor,
        **tuned,
        **measured,
    }


def _environment(case: TrainCase, stack: contextlib.ExitStack) -> tuple[Place, Network]:
    """Return the hosts of ranks and of daemons: the same ones."""
    if case.link == LOOPBACK:
        return OneHost(), stack.enter_context(contextlib.closing(Loopback()))
    hosts = stack.enter_context(contextlib.closing(ShapedHosts(case.workers, case.link)))
    return hosts, hosts


def _measured(
    case: TrainCase, daemons: Mapping[str, DaemonRun], worlds: Mapping[str, World]
) -> dict[str, Any]:
    """The steps of each side, and how much memory they took."""
    steps_s = in_turns(case.rounds, daemons, worlds, lambda _: case.workload.block_steps)
    peaks = {side: run.peak_bytes() for side, run in daemons.items()}
    peaks |= {side: world.peak_bytes() for side, world in worlds.items()}
    counted = daemons["dtd"].blocks[1:]
    return {
        "steps_s": steps_s,
        "peak_bytes": {side: round(statistics.fmean(peak)) for side, peak in peaks.items()},
        "parts_s": {
            part: statistics.median(block.parts_s[part] for block in counted) for part in PARTS
        },
    }


def synchronise(world: World, choice: Mapping[str, Any], hook: str) -> None:
    """Wrap every rank's model into DDP with this choice of `_tuned`."""
    world.ask(
        "synchronise",
        bucket_mib=choice["bucket_mib"],
        batched=choice["batched"],
        hook=hook,
    )


def _tuned(case: TrainCase, place: Place, wire_dtype: str) -> dict[str, Any]:
    """The bucket size and the way of copying with which DDP is fastest here."""
    if case.world == 1 or len(case.buckets_mib) == 1:
        return {"bucket_mib": case.buckets_mib[-1], "batched": False, "trials": []}
    trials: list[dict[str, Any]] = [
        {"bucket_mib": cap_mib, "batched": batched}
        for cap_mib in case.buckets_mib
        for batched in (False, True)
    ]
    with built(place, case.world, case.spec, keeps_memory=False) as world:
        for trial in trials:
            synchronise(world, trial, wire_dtype)
            trial["step_s"] = torch_block(world, case.workload.block_steps)
    best = min(trials, key=lambda trial: float(trial["step_s"]))
    return {"bucket_mib": best["bucket_mib"], "batched": best["batched"], "trials": trials}


def _floor(place: Place, apart: World, steps: int) -> dict[str, Any]:
    """The floor and what it is made of: medians over ranks; nothing where there is no link."""
    if apart.size == 1:
        return {}
    answers = apart.ask("ready", count=steps)
    columns = zip(*(answer["ready_s"] for answer in answers), strict=True)
    ready_s = [statistics.median(times) for times in columns]
    optimizer_s = statistics.median(answer["optimizer_s"] for answer in answers)
    sizes: list[int] = answers[0]["bytes"]
    wires_s = _wires_s(place, apart.size, sizes)
    return {
        "bytes": sizes,
        "ready_s": ready_s,
        "wire_s": wires_s,
        "optimizer_s": optimizer_s,
        "floor_s": shaped_floor_s(ready_s, wires_s, optimizer_s),
    }


def _wires_s(place: Place, size: int, sizes: Sequence[int]) -> list[float]:
    """Return the best times of raw sockets for buckets of these sizes.

    Each by itself, or as a part of many bytes: buckets that follow one another hide their hops.
    """
    many_bytes = min(sum(sizes), _MANY_BYTES)
    with World("probe", size, place, {"tag": "none"}) as probe:
        join(probe)
        wire_s = {size_bytes: _wire_s(probe, size_bytes) for size_bytes in {*sizes, many_bytes}}
    byte_s = wire_s[many_bytes] / many_bytes
    return [min(wire_s[size_bytes], byte_s * size_bytes) for size_bytes in sizes]


def _wire_s(probe: World, size_bytes: int) -> float:
    probe.ask("prepare", size_bytes=size_bytes, dtype="float32")
    count = fitting_iterations(probe, _WIRE_S)
    return min(measure_once(probe, count)[0] for _ in range(_WIRE_TRIALS))


# --- all cases ------------------------------------------------------------------------------------


KIND: Final = "train"
KEY: Final = ("workload", "link", "world")
ROUNDS: Final = 5
BUCKETS_MIB: Final = (1, 4, 10, 25, 100)
QUICK_BUCKETS_MIB: Final = (25,)
MOST_STEPS: Final = {LOOPBACK: 1000, GIGABIT: 21, "100mbit": 3}
"""Most steps of a block: a step over a slow link takes seconds."""
BF16_LINKS: Final = ("100mbit",)
"""Links where fewer bytes are worth their loss."""


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case."""
    namespaces = own_network()
    if not namespaces:
        problem = "no network namespaces here: loopback only, the machine's congestion control"
        print(problem, file=sys.stderr)
    about = machine()
    for case in cases(options, namespaces=namespaces):
        record = measure(case)
        keep(KIND, [{**record, "machine": about}], KEY, options, _line(record))


def cases(options: argparse.Namespace, *, namespaces: bool) -> Iterator[TrainCase]:
    """Yield the cases to measure; a quick run takes a link if it can, because that covers more.

    Raises:
        UsageError: there is no such workload or link.
    """
    quick = options.quick
    covering = GIGABIT if namespaces else LOOPBACK
    for name in options.workloads or (QUICK if quick else WORKLOADS):
        workload = (WORKLOADS | QUICK).get(name)
        if workload is None:
            raise UsageError(f"no workload {name}", remedy=f"one of {', '.join(WORKLOADS)}")
        for link in options.links or ((covering,) if quick else workload.links):
            if link not in LINKS:
                raise UsageError(f"no link {link}", remedy=f"one of {', '.join(LINKS)}")
            for world in options.worlds or ((2,) if quick else workload.worlds):
                if link == LOOPBACK or (world > 1 and namespaces):
                    yield TrainCase(
                        name=name,
                        workload=dataclasses.replace(
                            workload, block_steps=min(workload.block_steps, MOST_STEPS[link])
                        ),
                        link=link,
                        world=world,
                        rounds=options.rounds or (2 if quick else ROUNDS),
                        buckets_mib=QUICK_BUCKETS_MIB if quick else BUCKETS_MIB,
                        bf16=world > 1 and (options.bf16 or link in BF16_LINKS),
                    )


def _line(record: Record) -> str:
    times = ", ".join(
        f"{side} {1000 * statistics.median(steps_s):.1f} ms"
        for side, steps_s in record["steps_s"].items()
    )
    floor_s = record["floor"].get("floor_s")
    floor = "" if floor_s is None else f", floor {1000 * floor_s:.1f} ms"
    return f"{record['workload']} {record['link']} N={record['world']}: {times}{floor}"
