"""`scripts/bench memory`: the memory of a job's state in each worker, beside the formula.

Real daemons train a stack of layers with AdamW for a few steps and stop at a gate between two;
then the kernel says what each worker has (proportional set size: pages that neighbours share count
once).  The same daemons with hardly any parameters are subtracted, so what is left is parameters,
gradients and optimizer state, with all that grows with them.  The formula is
`dtd.doctor.memory`.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from dtd.doctor.memory import REPLICATED, Division, StateSize, state_bytes
from dtd.job.strategy_table import SHARDED_STAGES
from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.results import MIB, Record, keep, machine, spread
from scripts.benchrun.tasks import MODELS, Workload
from scripts.cluster.networks import Loopback
from scripts.markdown import table

KIND: Final = "memory"
KEY: Final = ("stage", "mirrors", "world", "parameters")
WORLDS: Final = (4,)
MIRRORS: Final = (0, 1)
PARAMETERS: Final = 96_000_000
QUICK_PARAMETERS: Final = 4_000_000
FEW_PARAMETERS: Final = 4_000
LAYERS: Final = 384
"""Each about as large as a bucket; with larger ones the wire's memory takes a larger share."""
STEPS: Final = 4
_REPLICATED_BYTES: Final = 16
"""Bytes of a float32 parameter with Adam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case to measure."""

    division: Division
    world: int
    parameters: int

    @property
    def strategy(self) -> dict[str, Any]:
        if self.division.stage == REPLICATED:
            return {}
        return {
            "name": "sharded",
            "stage": self.division.stage,
            "mirrors": self.division.mirrors,
        }


def measure(case: Case) -> Record:
    """Return the memory of a case, and the formula's."""
    held, few = (_held_bytes(case, parameters) for parameters in (case.parameters, FEW_PARAMETERS))
    base, count = statistics.fmean(few), _count(case.parameters)
    size = StateSize(parameter_bytes=4 * count, common_bytes=0, optimizer_bytes=8 * count)
    return {
        "stage": case.division.stage,
        "mirrors": case.division.mirrors,
        "world": case.world,
        "parameters": count,
        "formula_bytes": state_bytes(size, case.division, case.world),
        "state_bytes": [round(one - base) for one in held],
        "base_bytes": round(base),
    }


def _options(parameters: int) -> dict[str, int]:
    return {"parameters": parameters, "layers": LAYERS, "rows": 256}


def _count(parameters: int) -> int:
    """Return how many parameters the model has: layers equally wide only come near a number."""
    with torch.device("meta"):
        model = MODELS["layers"](**_options(parameters)).build_model()
    return sum(parameter.numel() for parameter in model.parameters())


def _held_bytes(case: Case, parameters: int) -> list[int]:
    """Return each worker's memory between two steps."""
    workload = Workload(
        what="linear layers",
        model="layers",
        rows=2 * case.world,
        block_steps=STEPS,
        options=_options(parameters),
        optimizer={"name": "adamw"},
    )
    workers = [f"worker-{rank}" for rank in range(case.world)]
    with contextlib.closing(Loopback()) as network:
        run = DaemonRun(workload, workers, network, 1, case.strategy)
        with contextlib.closing(run):
            run.block()
            return run.held_bytes()


def run(options: argparse.Namespace) -> None:
    """Measure all that is asked for, case by case."""
    about = machine()
    for case in cases(options):
        record = measure(case)
        keep(KIND, [{**record, "machine": about}], KEY, options, " ".join(_row(record)))


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Return what to measure: replicated, then each stage without mirrors and with one."""
    parameters = QUICK_PARAMETERS if options.quick else PARAMETERS
    divisions = [Division(stage=REPLICATED)]
    divisions += [Division(stage=s, mirrors=count) for s in SHARDED_STAGES for count in MIRRORS]
    for world in options.worlds or WORLDS:
        for division in divisions:
            yield Case(division=division, world=world, parameters=parameters)


def memory_table(records: Sequence[Record]) -> str:
    """Return a row for each case: bytes a parameter, and the share of replicated training.

    The share is that of replicated training by the formula, and in the last column of
    its measured memory.
    """
    head = [
        *("workers", "strategy", "mirrors", "state of a worker", "± MAD"),
        *("bytes a parameter", "formula", "**share of replicated**", "formula"),
        "share of replicated as measured",
    ]
    order = sorted(records, key=lambda one: (one["world"], one["stage"], -one["mirrors"]))
    whole = {one["world"]: _each(one) for one in records if one["stage"] == REPLICATED}
    rows = []
    for record in order:
        beside = whole.get(record["world"])
        rows.append([*_row(record), "-" if beside is None else f"{_each(record) / beside:.3f}"])
    return table(head, rows)


def _each(record: Record) -> float:
    return spread(record["state_bytes"]).median / float(record["parameters"])


def _row(record: Record) -> list[str]:
    state, each = spread(record["state_bytes"]), _each(record)
    formula = record["formula_bytes"] / record["parameters"]
    stage = record["stage"]
    return [
        str(record["world"]),
        "replicated" if stage == REPLICATED else f"sharded, stage {stage}",
        "-" if stage == REPLICATED else str(record["mirrors"]),
        f"{state.median / MIB:.0f} MiB",
        f"{100 * state.relative:.0f} %",
        f"{each:.2f}",
        f"{formula:.2f}",
        f"**{each / _REPLICATED_BYTES:.3f}**",
        f"{formula / _REPLICATED_BYTES:.3f}",
    ]
