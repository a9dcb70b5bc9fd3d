"""`scripts/bench shares`: throughput of unequal workers, with equal slices and by speed.

Compute is a pause for each row, so that four workers have the speeds that a case says on any
machine.  Throughput is compared with what the workers could do together: the sum of their speeds.
In the last case a worker's speed halves in the middle and comes back, and the steps are counted
until rows have moved for the first and for the last time.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from scripts.benchrun.daemons import DaemonRun
from scripts.benchrun.results import Record, in_turn, keep, machine, spread
from scripts.benchrun.tasks import Workload
from scripts.cluster.networks import Loopback
from scripts.markdown import table

KIND: Final = "shares"
KEY: Final = ("case",)
SIDES: Final = ("equal", "measured")
ROUNDS: Final = 3
BATCH: Final = 64
BLOCK_STEPS: Final = 17
"""Of which the first does not count; before them as many, in which shares are found."""
PHASE_STEPS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Workers of some speeds; 1 is a row in `row_ms`."""

    name: str
    speeds: tuple[float, ...]
    row_ms: float = 40.0


CASES: Final = (
    Case(name="four alike", speeds=(1.0, 1.0, 1.0, 1.0)),
    Case(name="one of four at half speed", speeds=(1.0, 1.0, 1.0, 0.5)),
    Case(name="1 : 0.7 : 0.4", speeds=(1.0, 0.7, 0.4)),
)
CHANGING: Final = "one of four halves its speed and recovers"


def run(options: argparse.Namespace) -> None:
    """Measure all cases."""
    about = machine()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    for case in CASES[1:2] if options.quick else CASES:
        record = {**_steady(case, rounds), "machine": about}
        keep(KIND, [record], KEY, options, " ".join(_row(record)))
    if not options.quick:
        record = {**_changing(), "machine": about}
        keep(KIND, [record], KEY, options, f"{record['case']}: {record['moves']}")


def _workload(case: Case, speeds: Sequence[Sequence[float]], begins: Sequence[int]) -> Workload:
    steps = BLOCK_STEPS if len(begins) == 1 else PHASE_STEPS * len(begins)
    return Workload(
        what=case.name,
        model="rows",
        rows=BATCH,
        block_steps=steps,
        options={"row_ms": case.row_ms, "speeds": speeds, "begins": begins},
        optimizer={"name": "sgd"},
    )


@contextlib.contextmanager
def _started(workload: Workload, world: int, blocks: int, shares: str) -> Iterator[DaemonRun]:
    workers = [f"worker-{rank}" for rank in range(world)]
    with contextlib.closing(Loopback()) as network:
        run = DaemonRun(workload, workers, network, blocks, shares=shares)
        with contextlib.closing(run):
            yield run


def _steady(case: Case, rounds: int) -> Record:
    """Measure both sides in turn, after a block in which shares are found."""
    workload = _workload(case, [case.speeds], [0])
    with contextlib.ExitStack() as stack:
        runs = {
            side: stack.enter_context(_started(workload, len(case.speeds), rounds + 1, side))
            for side in SIDES
        }
        for one in runs.values():
            one.block()
        for turn in range(rounds):
            for side in in_turn(SIDES, turn):
                runs[side].block()
        steps_s = {side: [block.step_s for block in one.blocks[1:]] for side, one in runs.items()}
    return {
        "case": case.name,
        "speeds": list(case.speeds),
        "row_ms": case.row_ms,
        "batch": BATCH,
        "steps_s": steps_s,
    }


def _changing() -> Record:
    """Count the steps from each change of a speed to the first and to the last move of rows."""
    case = CASES[0]
    slow = (*case.speeds[:-1], case.speeds[-1] / 2)
    phases = [case.speeds, slow, case.speeds]
    begins = [PHASE_STEPS * phase for phase in range(len(phases))]
    workload = _workload(case, phases, begins)
    with _started(workload, len(case.speeds), 1, "measured") as one:
        one.block()
        rows = one.first_rows()
    changed = [step for step, (a, b) in enumerate(pairwise(rows), start=1) if a != b]
    moves = [
        [step - begin for step in changed if begin <= step < begin + PHASE_STEPS]
        for begin in begins[1:]
    ]
    return {"case": CHANGING, "speeds": list(slow), "batch": BATCH, "moves": moves, "rows": rows}


def shares_tables(records: Sequence[Record]) -> str:
    """Return the throughputs, and the steps after which rows have moved."""
    steady = [one for one in records if "steps_s" in one]
    head = ["speeds", "workers"]
    head += [f"{side} shares: rows/s of the sum" for side in SIDES]
    text = table([*head, "± MAD", "gain"], [_row(one) for one in steady])
    for one in records:
        if "moves" in one:
            slower, faster = (f"{moves[0]} (last: {moves[-1]})" for moves in one["moves"])
            text += (
                f"\n\nHalf speed from step {PHASE_STEPS} to {2 * PHASE_STEPS}: rows move away after"
                f" {slower} steps, and back after {faster}."
            )
    return text


def _row(record: Record) -> list[str]:
    sum_per_s = sum(record["speeds"]) * 1000.0 / record["row_ms"]
    reached = {
        side: spread([record["batch"] / step_s / sum_per_s for step_s in steps_s])
        for side, steps_s in record["steps_s"].items()
    }
    measured, equal = reached["measured"], reached["equal"]
    return [
        record["case"],
        str(len(record["speeds"])),
        f"{equal.median:.3f}",
        f"**{measured.median:.3f}**",
        f"{100 * measured.relative:.1f} %",
        f"{measured.median / equal.median:.2f}",
    ]
