"""`scripts/bench allreduce`: dtd's ring, Gloo and the limit, in turn, in one run.

For each world all sides stand at the same time and are measured one after another, A B ... B A, so
that a drift of the machine hurts all alike.  Bandwidths are those of nccl-tests: algorithm
bandwidth is bytes / time, bus bandwidth that times 2 (N - 1) / N, which is what a link carries.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import secrets
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.benchrun.daemons import OneHost, OtherHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import (
    NOTHING,
    Record,
    in_turn,
    keep,
    machine,
    paired_ratio,
    size_text,
    spread,
    time_text,
)
from scripts.markdown import table

KIND: Final = "allreduce"
KEY: Final = ("world", "dtype", "bytes", "side")
WORLDS: Final = (2, 4, 8)
SIZES: Final = tuple(4096 * 4**power for power in range(9))
DTYPES: Final = ("float32", "bfloat16")
TARGET_S: Final = 0.3
ROUNDS: Final = 5
_MOST_ITERATIONS: Final = 20_000
_TRIAL_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison.

    Attributes:
        kind: which program (`scripts.benchrun.ranks`).
        place: where its ranks run.
        setup: their other settings.
        dtypes: the types that it is measured with; what only moves bytes needs one.
    """

    kind: str
    place: type[OneHost] = OneHost
    setup: Mapping[str, Any]
    dtypes: Sequence[str] = DTYPES


BYTES_ONLY: Final = ("float32",)
SIDES: Final = {
    "dtd": Side(kind="dtd", setup={"lends": True}),
    "dtd, sockets": Side(kind="dtd", setup={"lends": False}),
    "dtd, other host": Side(kind="dtd", place=OtherHosts, setup={"lends": False}),
    "gloo": Side(kind="gloo", setup={}),
    "limit": Side(kind="probe", setup={"tag": False}, dtypes=BYTES_ONLY),
    "limit, xxh3": Side(kind="probe", setup={"tag": True}, dtypes=BYTES_ONLY),
}


def bus_factor(world: int) -> float:
    """Bytes over each link for each byte of the bucket."""
    return 2 * (world - 1) / world


def iterations_for(time_s: float, target_s: float) -> int:
    """Return the repetitions of a measurement of this time that fill the target."""
    return max(1, min(_MOST_ITERATIONS, math.ceil(target_s / max(time_s, 1e-9))))


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, world by world."""
    quick = options.quick
    worlds = options.worlds or ((2,) if quick else WORLDS)
    sizes = options.sizes or (SIZES[:3:2] if quick else SIZES)
    rounds = options.rounds or (2 if quick else ROUNDS)
    target_s = 0.01 if quick else TARGET_S
    sides = dict(SIDES)
    if not own_network():
        problem = "no network namespaces here: the machine's congestion control, no other host"
        print(problem, file=sys.stderr)
        sides = {name: side for name, side in sides.items() if side.place is OneHost}
    about = machine()
    sides = {name: side for name, side in sides.items() if name in (options.sides or SIDES)}
    for world in worlds:
        with contextlib.ExitStack() as stack:
            stand = {name: stack.enter_context(_join(side, world)) for name, side in sides.items()}
            for dtype in options.dtypes or DTYPES:
                taking = {name: stand[name] for name in stand if dtype in sides[name].dtypes}
                for size_bytes in sizes:
                    records = _measure(taking, size_bytes, dtype, rounds, target_s)
                    for record in records:
                        record["machine"] = about
                    keep(KIND, records, KEY, options, _line(records))


def _join(side: Side, world: int) -> World:
    made = World(side.kind, world, side.place(), side.setup)
    try:
        join(made)
    except BaseException:
        made.close()
        raise
    return made


def join(world: World) -> None:
    """Tell all ranks where the others are."""
    world.ask("join", addresses=world.ask("listen"), secret=secrets.token_hex(32))


def _measure(
    worlds: Mapping[str, World], size_bytes: int, dtype: str, rounds: int, target_s: float
) -> list[Record]:
    """One size and type: all sides in turn."""
    iterations: dict[str, int] = {}
    for name, world in worlds.items():
        with _bucket(world, size_bytes, dtype):
            iterations[name] = fitting_iterations(world, target_s)
    times_s: dict[str, list[float]] = {name: [] for name in worlds}
    cpus_s: dict[str, list[float]] = {name: [] for name in worlds}
    for turn in range(rounds):
        for name in in_turn([*worlds], turn):
            with _bucket(worlds[name], size_bytes, dtype):
                wall_s, cpu_s = measure_once(worlds[name], iterations[name])
            times_s[name].append(wall_s)
            cpus_s[name].append(cpu_s)
    return [
        {
            "world": worlds[name].size,
            "dtype": dtype,
            "bytes": size_bytes,
            "side": name,
            "iterations": iterations[name],
            "times_s": times_s[name],
            "cpu_s": cpus_s[name],
        }
        for name in worlds
    ]


@contextlib.contextmanager
def _bucket(world: World, size_bytes: int, dtype: str) -> Iterator[None]:
    """Let all ranks hold a bucket, summed once, inside: all sides stand at once.

    The small one in its place is summed, too: a neighbour unmaps the large one then.
    """
    _prepare(world, size_bytes, dtype)
    yield
    _prepare(world, min(SIZES), dtype)


def _prepare(world: World, size_bytes: int, dtype: str) -> None:
    world.ask("prepare", size_bytes=size_bytes, dtype=dtype)
    world.ask("verify")


def fitting_iterations(world: World, target_s: float) -> int:
    """Return the iterations that fill the target, by two trials: the first one is cold."""
    first_s, _ = measure_once(world, 1)
    trial_s, _ = measure_once(world, iterations_for(first_s, _TRIAL_SHARE * target_s))
    return iterations_for(trial_s, target_s)


def measure_once(world: World, iterations: int) -> tuple[float, float]:
    """(seconds of one all-reduce as the mean over ranks, processor seconds of it on all ranks)."""
    answers = world.ask("measure", iterations=iterations)
    wall_s = statistics.fmean(answer["wall_s"] for answer in answers) / iterations
    return wall_s, sum(answer["cpu_s"] for answer in answers) / iterations


def _line(records: Sequence[Record]) -> str:
    first = records[0]
    factor = bus_factor(first["world"]) * first["bytes"] / 1e9
    rates = [
        f"{record['side']} {factor / statistics.median(record['times_s']):.3f}"
        for record in records
    ]
    head = f"N={first['world']} {first['dtype']} {first['bytes'] // 1024} KiB"
    return f"{head}: bus GB/s {'; '.join(rates)}"


# --- the table ------------------------------------------------------------------------------------


def tables(records: Sequence[Record]) -> str:
    """A table for each world and type."""
    cases = sorted({(r["dtype"] != "float32", r["world"], r["dtype"]) for r in records})
    return "\n\n".join(
        f"#### {dtype}, {world} workers\n\n"
        + _table([r for r in records if (r["world"], r["dtype"]) == (world, dtype)])
        for _, world, dtype in cases
    )


def _table(records: Sequence[Record]) -> str:
    by_size: dict[int, dict[str, Record]] = {}
    for record in records:
        by_size.setdefault(record["bytes"], {})[record["side"]] = record
    head = [
        *("size", "dtd: time", "algorithm", "bus", "± MAD", "Gloo: bus", "± MAD"),
        *("**dtd : Gloo**", "sockets : Gloo", "other host : Gloo"),
        *("limit: bus", "limit, same tag", "sockets : that"),
        *("CPU s/GB dtd", "sockets", "Gloo", "limit"),
    ]
    return table(head, [_row(size, by_size[size]) for size in sorted(by_size)])


def _row(size_bytes: int, sides: dict[str, Record]) -> list[str]:
    dtd, gloo = sides["dtd"], sides["gloo"]
    ours = spread(dtd["times_s"])
    return [
        size_text(size_bytes),
        time_text(ours.median),
        _gigabytes(size_bytes / ours.median),
        *_bus(dtd),
        *_bus(gloo),
        f"**{_ratio(gloo, dtd)}**",
        _ratio(gloo, sides.get("dtd, sockets")),
        _ratio(gloo, sides.get("dtd, other host")),
        _bus(sides.get("limit"))[0],
        _bus(sides.get("limit, xxh3"))[0],
        _ratio(sides.get("limit, xxh3"), sides.get("dtd, sockets")),
        *(_cpu(sides.get(name)) for name in ("dtd", "dtd, sockets", "gloo", "limit")),
    ]


def _bus(record: Record | None) -> list[str]:
    if record is None:
        return [NOTHING, NOTHING]
    time = spread(record["times_s"])
    rate = bus_factor(record["world"]) * record["bytes"] / time.median
    return [_gigabytes(rate), f"{100 * time.relative:.0f} %"]


def _ratio(numerator: Record | None, denominator: Record | None) -> str:
    """Return the ratio of times, so of bandwidths the other way round."""
    if numerator is None or denominator is None:
        return NOTHING
    if len(numerator["times_s"]) != len(denominator["times_s"]):
        return NOTHING
    return f"{paired_ratio(numerator['times_s'], denominator['times_s']).median:.2f}"


def _cpu(record: Record | None) -> str:
    """Processor seconds of all ranks for each GB that a rank sends."""
    if record is None:
        return NOTHING
    sent_gb = bus_factor(record["world"]) * record["bytes"] / 1e9 * record["world"]
    return f"{statistics.median(record['cpu_s']) / sent_gb:.2f}"


def _gigabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s"
