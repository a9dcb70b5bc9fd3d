"""The memory of the job's workers by part, as `dtdctl status --memory` prints it.  Pure text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dtd import figures
from dtd.ctl import output
from dtd.doctor.memory import PARTS

HEADINGS: Final = ("WORKER", *(part.upper() for part in PARTS))

Values = Mapping[str, Any]


def memory_lines(status: Values, *, colour: bool) -> list[str]:
    """Return a table with two lines for each worker: measured, and predicted by the strategy."""
    measured = [worker for worker in status["workers"] if worker.get("memory")]
    if not measured:
        return ["", "no worker has measured its memory: that is done in a job's second step"]
    rows: list[tuple[str, ...]] = []
    for worker in measured:
        parts = worker["memory"]
        rows.append((worker["name"], *(_size(parts, part, "measured_bytes") for part in PARTS)))
        rows.append(("  predicted", *(_size(parts, part, "predicted_bytes") for part in PARTS)))
    return ["", *output.table_lines(HEADINGS, rows, colour=colour)]


def _size(parts: Values, part: str, which: str) -> str:
    count = parts.get(part, {}).get(which)
    return figures.NOTHING if count is None else figures.size(count)
