"""What the daemons hold over time: memory and descriptors, sampled from /proc."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
THIRD: Final = 3
SETTLED_S: Final = 20.0
"""A process younger than this is still growing into its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at one daemon's process."""

    name: str
    at_s: float
    age_s: float
    resident_bytes: int
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Medians of the first and of the last third of a run."""

    name: str
    samples: int
    resident_bytes: tuple[float, float]
    descriptors: tuple[float, float]
    threads: tuple[float, float]


def look(name: str, pid: int, at_s: float, started_s: float) -> Sample | None:
    """Sample a process; None when it is gone."""
    proc = Path(f"/proc/{pid}")
    try:
        pages = int((proc / "statm").read_text().split()[1])
        descriptors = sum(1 for _ in (proc / "fd").iterdir())
        threads = sum(1 for _ in (proc / "task").iterdir())
    except (OSError, IndexError):
        return None
    return Sample(
        name=name,
        at_s=at_s,
        age_s=at_s - started_s,
        resident_bytes=pages * PAGE_BYTES,
        descriptors=descriptors,
        threads=threads,
    )


def growth(samples: Sequence[Sample]) -> list[Growth]:
    """First against last third of each daemon's samples, young processes left out."""
    found: list[Growth] = []
    for name in sorted({sample.name for sample in samples}):
        own = [one for one in samples if one.name == name and one.age_s >= SETTLED_S]
        third = len(own) // THIRD
        if third == 0:
            continue
        first, last = own[:third], own[-third:]
        found.append(
            Growth(
                name=name,
                samples=len(own),
                resident_bytes=(_middle(first, "resident_bytes"), _middle(last, "resident_bytes")),
                descriptors=(_middle(first, "descriptors"), _middle(last, "descriptors")),
                threads=(_middle(first, "threads"), _middle(last, "threads")),
            )
        )
    return found


def _middle(samples: Sequence[Sample], figure: str) -> float:
    return float(statistics.median(getattr(sample, figure) for sample in samples))
