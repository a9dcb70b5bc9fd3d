"""The tables of `scripts/bench strategies`: pure text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scripts.benchrun.results import Record, Spread, paired_ratio, spread
from scripts.benchrun.strategies import SIDES
from scripts.benchrun.tables import NOTHING, time_text
from scripts.markdown import table

_APART: Final = "apart"
_PLAIN: Final = ("float32", "DDP")
_POWERSGD: Final = "DDP PowerSGD"
_BF16: Final = "DDP bf16"
_LINKS: Final = ("100mbit", "1gbit")


def strategies_tables(records: Sequence[Record]) -> str:
    """A table for each workload, link and number of workers."""
    order = sorted(records, key=lambda r: (r["workload"], _LINKS.index(r["link"]), r["world"]))
    return "\n\n".join(
        f"#### {record['link']}, {record['world']} workers: {record['what']}\n\n"
        f"A step that is compute alone takes {time_text(spread(record['steps_s'][_APART]).median)}."
        f"\n\n{_table(record)}"
        for record in order
    )


def exposed_s(record: Record, side: str) -> Spread:
    """Return a step's time beyond compute alone, round by round."""
    alone = record["steps_s"][_APART]
    return spread([a - b for a, b in zip(record["steps_s"][side], alone, strict=True)])


def _table(record: Record) -> str:
    head = [
        *("side", "step", "± MAD", "exposed", "of that: DDP PowerSGD", "bytes a step", "fewer"),
        *("**DDP bf16 : that**", "**DDP PowerSGD : that**", "rounds"),
    ]
    sides = [side for side in SIDES if side in record["steps_s"]]
    return table(head, [_row(record, side) for side in sides])


def _row(record: Record, side: str) -> list[str]:
    steps_s = record["steps_s"]
    step, exposed = spread(steps_s[side]), exposed_s(record, side)
    share = NOTHING
    if _POWERSGD in steps_s:
        share = f"{exposed.median / exposed_s(record, _POWERSGD).median:.2f}"
    return [
        side,
        time_text(step.median),
        f"{100 * step.relative:.0f} %",
        time_text(max(0.0, exposed.median)),
        share,
        f"{record['step_bytes'][side] / 2**20:.2f} MiB",
        _fewer(record, side),
        *(_faster(record, other, side) for other in (_BF16, _POWERSGD)),
        str(len(steps_s[side])),
    ]


def _fewer(record: Record, side: str) -> str:
    """By how much, against the same program with float32."""
    plain = _PLAIN[side.startswith("DDP")]
    sizes = record["step_bytes"]
    return f"{sizes[plain] / sizes[side]:.1f}" if plain in sizes else NOTHING


def _faster(record: Record, other: str, side: str) -> str:
    steps_s = record["steps_s"]
    if other not in steps_s or other == side:
        return NOTHING
    return f"{paired_ratio(steps_s[other], steps_s[side]).median:.2f}"
