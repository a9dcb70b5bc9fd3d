"""`scripts/bench train`: whole steps of dtd's daemons against DDP over Gloo and against no sync.

Which cases there are is decided here; how one is measured is `scripts.benchrun.case`.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from typing import Final

from dtd.errors import UsageError
from scripts.benchrun.case import Case, measure
from scripts.benchrun.machine import machine
from scripts.benchrun.places import own_network
from scripts.benchrun.results import Record, keep
from scripts.benchrun.workloads import LINKS, LOOPBACK, QUICK, WORKLOADS

KIND: Final = "train"
KEY: Final = ("workload", "link", "world")
WORLDS: Final = (1, 2, 4)
ROUNDS: Final = 5
BUCKETS_MIB: Final = (1, 4, 10, 25, 100)
QUICK_BUCKETS_MIB: Final = (25,)
MOST_STEPS: Final = {LOOPBACK: 1000, "1gbit": 21, "100mbit": 3}
"""Of a block: a step over a slow link takes seconds."""
BF16_LINKS: Final = ("100mbit",)
"""Where fewer bytes are worth what they lose."""


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


def cases(options: argparse.Namespace, *, namespaces: bool) -> Iterator[Case]:
    """What to measure; a quick run takes a link if it can, because that covers more.

    Raises:
        UsageError: there is no such workload or link.
    """
    quick = options.quick
    links = (LINKS[1:2] if namespaces else LINKS[:1]) if quick else LINKS
    for name in options.workloads or (QUICK if quick else WORKLOADS):
        workload = (WORKLOADS | QUICK).get(name)
        if workload is None:
            raise UsageError(f"no workload {name}", remedy=f"one of {', '.join(WORKLOADS)}")
        for link in options.links or links:
            if link not in LINKS:
                raise UsageError(f"no link {link}", remedy=f"one of {', '.join(LINKS)}")
            for world in options.worlds or ((2,) if quick else WORLDS):
                if link == LOOPBACK or (world > 1 and namespaces):
                    yield Case(
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
    return f"{record['workload']} {record['link']} N={record['world']}: {times}"
