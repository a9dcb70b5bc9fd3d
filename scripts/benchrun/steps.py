"""`scripts/bench train`, `strategies` and `sharded`: steps of dtd's daemons beside plain torch's.

All sides of a case stand at the same time and take turns in blocks of steps, A B ... B A, so that a
drift of the machine hurts all alike.  A side is a job of real daemons, or processes of plain torch
on the same hosts; `apart` never talk, so what a step takes beyond theirs is communication that did
not hide, and `single` is one process with all rows.  Torch's sides have the bucket size with which
they are fastest in trials of the same case.  The first step of a block does not count; a block of
local steps is whole rounds.

The floor is the least that the links allow: a bucket is sent once it is full and the one before has
arrived.  Buckets are full when they are in `apart`, and travel as fast as raw sockets can.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dtd.errors import UsageError
from dtd.job.strategy_table import SHARDED_STAGES
from scripts.benchrun.allreduce import fitting_iterations, join, measure_once
from scripts.benchrun.daemons import DaemonRun, OneHost, Place, ShapedHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import (
    MIB,
    NOTHING,
    Record,
    in_turn,
    keep,
    machine,
    paired_ratio,
    spread,
    time_text,
)
from scripts.benchrun.tasks import (
    GIGABIT,
    LINKS,
    LOOPBACK,
    QUICK,
    SLOW,
    WORKLOADS,
    Workload,
    job_of,
)
from scripts.cluster.networks import Loopback, Network
from scripts.markdown import table

# --- what is compared -----------------------------------------------------------------------------

APART: Final = "apart"
KEY: Final = ("workload", "link", "world")
ROUNDS: Final = 5
MOST_STEPS: Final = {LOOPBACK: 1000, GIGABIT: 21, SLOW: 5}
"""Most steps of a block: a step over a slow link takes seconds."""
_TRIAL_STEPS: Final = 4
_ROUNDS_A_BLOCK: Final = 5
_FAST: Final = (LOOPBACK, GIGABIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: dtd if it has a strategy, else plain torch.

    Attributes:
        strategy: the job's `[strategy]` table.
        servers: parameter servers, on hosts of their own with links of 1 Gbit/s.
        by: how torch synchronises (`scripts.benchrun.torch_side`); empty: not at all.
        keeps_memory: whether torch's processes keep freed memory, as dtd's workers do.
        single: one process with all rows.
        over: links over which it is compared unless it is asked for.
        lossless: the job's `sync.lossless`.
    """

    strategy: Mapping[str, Any] | None = None
    servers: int = 0
    by: str = ""
    keeps_memory: bool = True
    single: bool = False
    over: Sequence[str] = LINKS
    lossless: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The sides of one subcommand.

    Attributes:
        what: for its help.
        sides: by name; `apart` is added.
        against: sides whose steps are divided by those of every side in the table.
        workloads: measured unless others are asked for.
        buckets_mib: sizes of buckets that torch's sides try.
        floor: whether the floor is measured.
        optimizer: `[optimizer]` table of every workload.
    """

    what: str
    sides: Mapping[str, Side]
    against: Sequence[str]
    workloads: Sequence[str]
    buckets_mib: Sequence[int]
    floor: bool = False
    optimizer: Mapping[str, Any] | None = None


_ON_SERVERS: Final = {"name": "sharded", "owners": "servers"}
COMPARISONS: Final[Mapping[str, Comparison]] = {
    "train": Comparison(
        what="training steps against DDP, no synchronisation, one process",
        sides={
            "dtd": Side(strategy={}),
            "ddp": Side(by="ddp", keeps_memory=False),
            "ddp-heap": Side(by="ddp"),
            "dtd-bf16": Side(strategy={"codec": "bfloat16"}, over=(SLOW,)),
            "ddp-bf16": Side(by="bfloat16", keeps_memory=False, over=(SLOW,)),
            "single": Side(single=True),
        },
        against=("ddp", "ddp-heap", "single"),
        workloads=("resnet18-16", "resnet18-64", "chargpt-16", "mlp-16", "paced-16"),
        buckets_mib=(1, 4, 10, 25, 100),
        floor=True,
    ),
    "strategies": Comparison(
        what="strategies and codecs on slow links, against DDP's hooks",
        sides={
            "float32": Side(strategy={}),
            "bfloat16": Side(strategy={"codec": "bfloat16"}),
            "int8": Side(strategy={"codec": "int8"}),
            "PowerSGD rank 4": Side(strategy={"codec": "powersgd", "rank": 4}),
            "top-k 1 %": Side(strategy={"codec": "top_k", "density": 0.01, "momentum": 0.9}),
            "DiLoCo H = 32": Side(strategy={"name": "diloco", "inner_steps": 32}),
            "streaming DiLoCo H = 32": Side(
                strategy={"name": "streaming_diloco", "inner_steps": 32, "fragments": 4}
            ),
            "DDP": Side(by="ddp"),
            "DDP bf16": Side(by="bfloat16"),
            "DDP PowerSGD": Side(by="powersgd"),
        },
        against=("DDP bf16", "DDP PowerSGD"),
        workloads=("paced-resnet18",),
        buckets_mib=(4, 25, 100),
    ),
    "sharded": Comparison(
        what="sharded state against replicated, ZeRO and FSDP2",
        sides={
            "dtd replicated": Side(strategy={}),
            "dtd, owner's updates": Side(strategy={"update": "owner"}, over=_FAST),
            **{
                f"dtd stage {stage}": Side(
                    strategy={"name": "sharded", "stage": stage},
                    over=LINKS if stage == 1 else _FAST,
                )
                for stage in SHARDED_STAGES
            },
            "dtd, 1 server": Side(strategy=_ON_SERVERS, servers=1, over=(SLOW,)),
            "dtd, 2 servers": Side(strategy=_ON_SERVERS, servers=2, over=(SLOW,)),
            "DDP + ZeRO": Side(by="zero", over=_FAST),
            "FSDP2": Side(by="fsdp", over=_FAST),
            "FSDP2, parameters kept": Side(by="fsdp-keeps", over=_FAST),
        },
        against=("dtd replicated", "DDP + ZeRO", "FSDP2", "FSDP2, parameters kept"),
        workloads=("paced-16", "paced-small"),
        buckets_mib=(4, 25),
        optimizer={"name": "adamw"},
    ),
    "lossless": Comparison(
        what="coding of payloads without loss, against none and against DDP",
        sides={
            **{mode: Side(strategy={}, lossless=mode) for mode in ("auto", "on", "off")},
            **{
                f"bfloat16 {mode}": Side(strategy={"codec": "bfloat16"}, lossless=mode)
                for mode in ("auto", "off")
            },
            "DDP": Side(by="ddp"),
        },
        against=("off", "bfloat16 off", "DDP"),
        workloads=("paced-16",),
        buckets_mib=(4, 25),
        floor=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case to measure: a workload, a link and a number of workers; each side has `rounds` turns.

    Attributes:
        sides: those that are compared.
        buckets_mib: sizes of buckets that torch's sides try.
        floor: whether the floor is measured.
    """

    name: str
    workload: Workload
    link: str
    world: int
    rounds: int
    sides: Mapping[str, Side]
    buckets_mib: Sequence[int]
    floor: bool = False

    @property
    def workers(self) -> list[str]:
        return [f"worker-{rank}" for rank in range(self.world)]

    def hosts(
        self, stack: contextlib.ExitStack, servers: Sequence[str] = ()
    ) -> tuple[Place, Network]:
        """The workers' hosts as ranks and as daemons see them; `stack` closes them.

        A host has one data port of a number, so each job needs hosts of its own.
        """
        if self.link == LOOPBACK:
            return OneHost(), stack.enter_context(contextlib.closing(Loopback()))
        rates = dict.fromkeys(servers, GIGABIT)
        hosts = ShapedHosts([*self.workers, *servers], self.link, rates)
        stack.enter_context(contextlib.closing(hosts))
        return hosts, hosts


# --- one case -------------------------------------------------------------------------------------


def measure(case: Case) -> Record:
    """Measure all sides of a case."""
    with contextlib.ExitStack() as stack:
        place, _ = case.hosts(stack)
        worlds: dict[str, World] = {}
        buckets_mib: dict[str, int] = {}
        for name, side in case.sides.items():
            if side.strategy is None:
                if side.by:
                    buckets_mib[name] = _fastest_mib(case, place, side)
                worlds[name] = stack.enter_context(_built(case, place, side))
                if side.by:
                    _synchronise(worlds[name], side, buckets_mib[name])
        floor = _floor(case, place, worlds[APART]) if case.floor and case.world > 1 else {}
        runs = {
            name: stack.enter_context(contextlib.closing(_daemons(case, side, stack)))
            for name, side in case.sides.items()
            if side.strategy is not None
        }
        steps_s = _take_turns(case, runs, worlds)
        peaks = {name: one.peak_bytes() for name, one in (runs | worlds).items()}
        return {
            "workload": case.name,
            "what": case.workload.what,
            "rows": case.workload.rows,
            "link": case.link,
            "world": case.world,
            "steps_s": steps_s,
            "step_bytes": _step_bytes(case, runs, worlds),
            "peak_bytes": {name: round(statistics.fmean(peak)) for name, peak in peaks.items()},
            "buckets_mib": buckets_mib,
            "floor": floor,
        }


def _take_turns(
    case: Case, runs: Mapping[str, DaemonRun], worlds: Mapping[str, World]
) -> dict[str, list[float]]:
    """The mean step of each block: every side runs one to warm up, then in turns."""
    turns: dict[str, Callable[[], float]] = {}
    for name in case.sides:
        if name in runs:
            turns[name] = partial(_daemon_block, runs[name])
        else:
            turns[name] = partial(_torch_block, worlds[name], case.workload.block_steps)
    for turn in turns.values():
        turn()
    steps_s: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(case.rounds):
        for name in in_turn([*turns], number):
            steps_s[name].append(turns[name]())
    return steps_s


def _step_bytes(
    case: Case, runs: Mapping[str, DaemonRun], worlds: Mapping[str, World]
) -> dict[str, float]:
    """Bytes that rank 0 of a job sent in a step; of DDP, what an ideal ring would send."""
    found = {
        name: statistics.fmean(block.sent_bytes for block in run.blocks[1:])
        for name, run in runs.items()
    }
    for name, world in worlds.items():
        payload_bytes = world.ask("payload_bytes")[0] if case.sides[name].by else None
        if payload_bytes is not None:
            found[name] = 2 * (world.size - 1) / world.size * payload_bytes
    return found


def _daemons(case: Case, side: Side, stack: contextlib.ExitStack) -> DaemonRun:
    servers = [f"server-{number}" for number in range(side.servers)]
    strategy = side.strategy or {}
    steps = int(strategy.get("inner_steps", case.workload.block_steps))
    if strategy.get("name") == "streaming_diloco":
        steps = steps // int(strategy["fragments"]) * _ROUNDS_A_BLOCK
    workload = dataclasses.replace(case.workload, block_steps=steps)
    _, network = case.hosts(stack, servers)
    blocks = case.rounds + 1
    return DaemonRun(
        workload, case.workers, network, blocks, strategy, servers, lossless=side.lossless
    )


@contextlib.contextmanager
def _built(case: Case, place: Place, side: Side) -> Iterator[World]:
    """Ranks of plain torch that have the job's model."""
    where, size = (OneHost(), 1) if side.single else (place, case.world)
    with World("torch", size, where, {"keeps_memory": side.keeps_memory}) as world:
        world.ask("build", spec=job_of(case.workload, steps=1, gates="", holds=[]))
        yield world


def _synchronise(world: World, side: Side, bucket_mib: int) -> None:
    world.ask("synchronise", by=side.by, bucket_mib=bucket_mib)


def _daemon_block(run: DaemonRun) -> float:
    return run.block().step_s


def _torch_block(world: World, steps: int) -> float:
    """The mean step of plain torch, the first left out as in `DaemonRun.block`."""
    answers = world.ask("steps", count=steps)
    return statistics.fmean(statistics.fmean(steps_s[1:]) for steps_s in answers)


def _fastest_mib(case: Case, place: Place, side: Side) -> int:
    """The bucket size with which a side is fastest here; FSDP2 has no such size."""
    if case.world == 1 or len(case.buckets_mib) == 1 or side.by.startswith("fsdp"):
        return case.buckets_mib[-1]
    trials_s: dict[int, float] = {}
    with _built(case, place, side) as world:
        for bucket_mib in case.buckets_mib:
            _synchronise(world, side, bucket_mib)
            _torch_block(world, _TRIAL_STEPS)  # PowerSGD begins uncompressed
            trials_s[bucket_mib] = _torch_block(world, _TRIAL_STEPS)
    return min(trials_s, key=trials_s.__getitem__)


# --- the floor ------------------------------------------------------------------------------------

_WIRE_S: Final = 0.15
_WIRE_TRIALS: Final = 3
_MANY_BYTES: Final = 16 * MIB


def _floor(case: Case, place: Place, apart: World) -> dict[str, Any]:
    """The floor and its parts: medians over ranks."""
    answers = apart.ask("ready", count=case.workload.block_steps)
    columns = zip(*(answer["ready_s"] for answer in answers), strict=True)
    ready_s = [statistics.median(times) for times in columns]
    optimizer_s = statistics.median(answer["optimizer_s"] for answer in answers)
    wire_s = _wires_s(place, apart.size, answers[0]["bytes"])
    end_s = 0.0
    for ready, wire in zip(ready_s, wire_s, strict=True):
        end_s = max(end_s, ready) + wire
    return {
        "ready_s": ready_s,
        "wire_s": wire_s,
        "optimizer_s": optimizer_s,
        "floor_s": end_s + optimizer_s,
    }


def _wires_s(place: Place, size: int, sizes: Sequence[int]) -> list[float]:
    """The best times of raw sockets for buckets of these sizes.

    Each by itself, or as a part of many bytes: buckets that follow one another hide their hops.
    """
    many_bytes = min(sum(sizes), _MANY_BYTES)
    wire_s: dict[int, float] = {}
    with World("probe", size, place, {"tag": False}) as probe:
        join(probe)
        for size_bytes in {*sizes, many_bytes}:
            probe.ask("prepare", size_bytes=size_bytes, dtype="float32")
            count = fitting_iterations(probe, _WIRE_S)
            wire_s[size_bytes] = min(measure_once(probe, count)[0] for _ in range(_WIRE_TRIALS))
    byte_s = wire_s[many_bytes] / many_bytes
    return [min(wire_s[size_bytes], byte_s * size_bytes) for size_bytes in sizes]


# --- all cases ------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case.

    Raises:
        UsageError: there is no such workload, link or side.
    """
    namespaces = own_network()
    if not namespaces:
        print("no network namespaces here: only loopback can be measured", file=sys.stderr)
    about = machine()
    for case in cases(options, namespaces=namespaces):
        record = measure(case)
        times = ", ".join(
            f"{name} {1000 * statistics.median(steps_s):.1f} ms"
            for name, steps_s in record["steps_s"].items()
        )
        line = f"{case.name} {case.link} N={case.world}: {times}"
        keep(options.kind, [{**record, "machine": about}], KEY, options, line)


def cases(options: argparse.Namespace, *, namespaces: bool) -> Iterator[Case]:
    """Yield the cases to measure; a quick run takes a link if it can, because that covers more.

    Raises:
        UsageError: there is no such workload, link or side.
    """
    comparison, quick = COMPARISONS[options.kind], options.quick
    known = WORKLOADS | QUICK
    covering = GIGABIT if namespaces else LOOPBACK
    for name in options.workloads or (QUICK if quick else comparison.workloads):
        workload = _one_of(known, name, "workload")
        for link in options.links or ((covering,) if quick else workload.links):
            _one_of(MOST_STEPS, link, "link")
            for world in options.worlds or ((2,) if quick else workload.worlds):
                if link == LOOPBACK or (world > 1 and namespaces):
                    yield Case(
                        name=name,
                        workload=dataclasses.replace(
                            workload,
                            block_steps=min(workload.block_steps, MOST_STEPS[link]),
                            optimizer=comparison.optimizer or {},
                        ),
                        link=link,
                        world=world,
                        rounds=options.rounds or (1 if quick else ROUNDS),
                        sides=_sides(comparison, options.sides, link, world),
                        buckets_mib=comparison.buckets_mib[:1] if quick else comparison.buckets_mib,
                        floor=comparison.floor,
                    )


def _sides(
    comparison: Comparison, asked: Sequence[str] | None, link: str, world: int
) -> dict[str, Side]:
    known = comparison.sides
    names = asked or [name for name, side in known.items() if link in side.over]
    chosen: dict[str, Side] = {name: _one_of(known, name, "side") for name in names}
    if world == 1:  # `apart` is the one process
        chosen = {name: side for name, side in chosen.items() if not side.single}
    return {**chosen, APART: Side()}


def _one_of(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise UsageError(f"there is no {what} {name!r}", remedy=f"one of {', '.join(known)}")
    return known[name]


# --- the table ------------------------------------------------------------------------------------


def tables(kind: str, records: Sequence[Record]) -> str:
    """A table for each workload, with a row for each side of a case."""
    against = COMPARISONS[kind].against
    head = [
        *("link", "workers", "side", "step", "± MAD", "exposed", "bytes a step", "peak memory"),
        *(f"**{other} : that**" for other in against),
        "rounds",
    ]
    parts: list[str] = []
    for what in dict.fromkeys(record["what"] for record in records):
        own = sorted((one for one in records if one["what"] == what), key=_place_of)
        rows = [row for record in own for row in _rows(kind, record)]
        parts.append(f"#### {what}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _place_of(record: Record) -> tuple[int, int]:
    return LINKS.index(record["link"]), record["world"]


def _rows(kind: str, record: Record) -> Iterator[list[str]]:
    steps_s = record["steps_s"]
    case = [record["link"], str(record["world"])]
    for name in (*(one for one in COMPARISONS[kind].sides if one in steps_s), APART):
        step = spread(steps_s[name])
        exposed_s = spread([a - b for a, b in zip(steps_s[name], steps_s[APART], strict=True)])
        sent, peak = (record.get(key, {}).get(name) for key in ("step_bytes", "peak_bytes"))
        yield [
            *case,
            name,
            time_text(step.median),
            f"{100 * step.relative:.0f} %",
            NOTHING if name in (APART, "single") else time_text(max(0.0, exposed_s.median)),
            NOTHING if sent is None else f"{sent / MIB:.2f} MiB",
            NOTHING if peak is None else f"{peak / MIB:.0f} MiB",
            *(_ratio(steps_s, other, name) for other in COMPARISONS[kind].against),
            str(len(steps_s[name])),
        ]
    floor_s = record.get("floor", {}).get("floor_s")
    if floor_s is not None:
        empty = [NOTHING] * (len(COMPARISONS[kind].against) + 5)
        yield [*case, "floor", time_text(floor_s), *empty]


def _ratio(steps_s: Mapping[str, Sequence[float]], side: str, to: str) -> str:
    """The ratio of the steps of two sides, round by round."""
    if side == to or side not in steps_s:
        return NOTHING
    return f"{paired_ratio(steps_s[side], steps_s[to]).median:.2f}"
