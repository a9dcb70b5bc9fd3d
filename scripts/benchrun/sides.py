"""Sides of a comparison that stand at the same time and take turns in blocks of steps.

Some are jobs of real daemons, some are torch's processes on the same hosts; and `apart` are
processes that never talk, so that what a step takes beyond theirs is communication that did not
hide.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd.errors import UsageError
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.places import ShapedHosts, own_network
from scripts.benchrun.ranks import World
from scripts.benchrun.results import Record, keep, machine
from scripts.benchrun.turns import Case, built, in_turns

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
