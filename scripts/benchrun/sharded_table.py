"""The tables of `scripts/bench sharded`: pure text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scripts.benchrun.results import Record, paired_ratio, spread
from scripts.benchrun.sharded import REPLICATED, TORCH
from scripts.benchrun.sides import APART
from scripts.benchrun.strategy_table import exposed_s
from scripts.benchrun.tables import NOTHING, time_text
from scripts.markdown import table

_MIB: Final = 1 << 20


def sharded_tables(records: Sequence[Record]) -> str:
    """Return a table for each workload and number of workers."""
    order = sorted(records, key=lambda record: (record["workload"], record["world"]))
    return "\n\n".join(
        f"#### {record['link']}, {record['world']} workers: {record['what']}\n\n"
        f"A step that is compute alone takes {time_text(spread(record['steps_s'][APART]).median)}."
        f"\n\n{_table(record)}"
        for record in order
    )


def sides_of(record: Record) -> list[str]:
    """Return the sides that were compared, dtd's first."""
    ours = [side for side in record["steps_s"] if side not in (*TORCH, APART)]
    return [*ours, *(side for side in TORCH if side in record["steps_s"])]


def _table(record: Record) -> str:
    head = [
        *("side", "step", "± MAD", "exposed", "bytes a step", "peak memory of a worker"),
        *("**that : dtd replicated**", *(f"**{side} : that**" for side in TORCH), "rounds"),
    ]
    return table(head, [_row(record, side) for side in sides_of(record)])


def _row(record: Record, side: str) -> list[str]:
    steps_s = record["steps_s"]
    step = spread(steps_s[side])
    sent = record["step_bytes"].get(side)
    return [
        side,
        time_text(step.median),
        f"{100 * step.relative:.0f} %",
        time_text(max(0.0, exposed_s(record, side).median)),
        NOTHING if sent is None else f"{sent / _MIB:.2f} MiB",
        f"{record['peak_bytes'][side] / _MIB:.0f} MiB",
        _ratio(record, side, REPLICATED),
        *(_ratio(record, other, side) for other in TORCH),
        str(len(steps_s[side])),
    ]


def _ratio(record: Record, side: str, to: str) -> str:
    """Return how many times as long a step of a side takes as one of another."""
    steps_s = record["steps_s"]
    if side == to or side not in steps_s or to not in steps_s:
        return NOTHING
    return f"{paired_ratio(steps_s[side], steps_s[to]).median:.2f}"
