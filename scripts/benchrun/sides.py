"""Sides of a comparison that stand at the same time and take turns in blocks of steps: A B ... B A.

Some are jobs of real daemons, some are torch's processes on the same hosts; and `apart` are
processes that never talk, so that what a step takes beyond theirs is communication that did not
hide.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dtd.errors import UsageError
from scripts.benchrun.daemons import DaemonRun, Place, ShapedHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record, in_turn, keep, machine
from scripts.benchrun.workloads import Workload, job_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case to measure.

    Attributes:
        name: of the workload.
        workload: model, rows and optimizer.
        link: the workers' network.
        world: number of workers.
        rounds: how often each side has its turn, after one to warm up.
    """

    name: str
    workload: Workload
    link: str
    world: int
    rounds: int

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return [f"worker-{rank}" for rank in range(self.world)]

    @property
    def spec(self) -> dict[str, Any]:
        """The job as plain torch sees it: without gates."""
        return job_of(self.workload, steps=1, gates="", holds=[])

    @property
    def described(self) -> dict[str, Any]:
        """Return the first fields of its record."""
        return {
            "workload": self.name,
            "what": self.workload.what,
            "rows": self.workload.rows,
            "link": self.link,
            "world": self.world,
        }


def in_turns(
    rounds: int,
    runs: Mapping[str, DaemonRun],
    worlds: Mapping[str, World],
    steps_of: Callable[[str], int],
) -> dict[str, list[float]]:
    """Have each side run a block once to warm up, then in turns.

    Args:
        rounds: turns of each side.
        runs: dtd's jobs.
        worlds: torch's processes.
        steps_of: steps of a block of torch's side with this name.

    Returns:
        The mean step of each block, by side.
    """
    turns: dict[str, Callable[[], float]] = {
        side: partial(_daemon_block, run) for side, run in runs.items()
    }
    turns |= {side: partial(torch_block, world, steps_of(side)) for side, world in worlds.items()}
    for turn in turns.values():
        turn()
    steps_s: dict[str, list[float]] = {side: [] for side in turns}
    for number in range(rounds):
        for side in in_turn([*turns], number):
            steps_s[side].append(turns[side]())
    return steps_s


def _daemon_block(run: DaemonRun) -> float:
    return run.block().step_s


def torch_block(world: World, steps: int) -> float:
    """The mean step of plain torch, the first left out as in `DaemonRun.block`."""
    answers = world.ask("steps", count=steps)
    return statistics.fmean(statistics.fmean(steps_s[1:]) for steps_s in answers)


@contextlib.contextmanager
def built(place: Place, size: int, spec: dict[str, Any], *, keeps_memory: bool) -> Iterator[World]:
    """Ranks of plain torch that have the job's model."""
    with World("torch", size, place, {"keeps_memory": keeps_memory}) as world:
        world.ask("build", spec=spec)
        yield world


APART: Final = "apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesCase(Case):
    """A case to measure.

    Attributes:
        sides: those that are compared.
    """

    sides: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """All sides of a case, after their turns.

    Attributes:
        worlds: torch's processes, and those apart.
        runs: dtd's jobs.
        choices: how each of torch's sides was set up.
    """

    worlds: Mapping[str, World]
    runs: Mapping[str, DaemonRun]
    choices: Mapping[str, dict[str, Any]]

    def step_bytes(self) -> dict[str, float]:
        """Bytes that rank 0 of each job sent in a step."""
        return {
            side: statistics.fmean(block.sent_bytes for block in run.blocks[1:])
            for side, run in self.runs.items()
        }


def hosts_of(
    case: SidesCase,
    stack: contextlib.ExitStack,
    more: Sequence[str] = (),
    rates: Mapping[str, str] | None = None,
) -> ShapedHosts:
    """A host for each worker, joined by the case's links.

    Every worker has a data port, and a host has one of that number: each job has hosts of its own.

    Args:
        case: names the workers and the link.
        stack: closes them.
        more: further hosts.
        rates: of hosts whose links are others.
    """
    made = ShapedHosts([*case.workers, *more], case.link, rates or {})
    return stack.enter_context(contextlib.closing(made))


def measured(
    case: SidesCase,
    *,
    worlds: Mapping[str, Callable[[World], dict[str, Any]]],
    runs: Mapping[str, Callable[[contextlib.ExitStack], DaemonRun]],
    steps_of: Callable[[str], int],
    about: Callable[[Sides], Record],
) -> Record:
    """Measure those sides of a case that it names.

    Args:
        case: what to measure.
        worlds: for each of torch's sides, what sets its processes up and returns how.
        runs: for each job, what starts it.
        steps_of: steps of a block of torch's side with this name, or of those apart.
        about: returns what else a record has, while the sides stand.
    """
    with contextlib.ExitStack() as stack:
        hosts = hosts_of(case, stack)
        built_worlds: dict[str, World] = {}
        choices: dict[str, dict[str, Any]] = {}
        for side in (*(one for one in worlds if one in case.sides), APART):
            # Memory is kept on both sides: what is compared here is the wire.
            built_worlds[side] = stack.enter_context(
                built(hosts, case.world, case.spec, keeps_memory=True)
            )
            if side in worlds:
                choices[side] = worlds[side](built_worlds[side])
        started = {
            side: stack.enter_context(contextlib.closing(start(stack)))
            for side, start in runs.items()
            if side in case.sides
        }
        sides = Sides(worlds=built_worlds, runs=started, choices=choices)
        return {
            **case.described,
            "steps_s": in_turns(case.rounds, sides.runs, sides.worlds, steps_of),
            **about(sides),
        }


def run_all(
    kind: str,
    key: Sequence[str],
    chosen: Sequence[SidesCase],
    measure: Callable[[SidesCase], Record],
    options: argparse.Namespace,
) -> None:
    """Measure case by case, and keep the results.

    Raises:
        UsageError: links of a known rate cannot be made here.
    """
    if not own_network():
        raise UsageError(
            "no network namespaces here, so no links of a known rate",
            remedy="run it as root, or where users may make namespaces",
        )
    about = machine()
    for case in chosen:
        record = measure(case)
        keep(kind, [{**record, "machine": about}], key, options, _line(record))


def _line(record: Record) -> str:
    """The case and the median step of each side."""
    times = ", ".join(
        f"{side} {1000 * statistics.median(steps_s):.0f} ms"
        for side, steps_s in record["steps_s"].items()
    )
    return f"{record['workload']} {record['link']} N={record['world']}: {times}"
