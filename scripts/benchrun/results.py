"""Figures: medians and their spread, and records as JSON in docs/benchmarks.

There is one file for each subcommand and one record for each case.  A later run replaces the
records of the cases that it measured and keeps the others, so that a long benchmark can be made in
pieces.  Every record says on what it was measured, and nothing that names the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dtd import __version__

# --- medians and ratios ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of some measurements, and the median absolute deviation from it."""

    median: float
    mad: float

    @property
    def relative(self) -> float:
        """The deviation as a share of the median."""
        return self.mad / self.median if self.median else math.nan


def spread(values: Sequence[float]) -> Spread:
    """Summarise at least one value."""
    median = statistics.median(values)
    return Spread(
        median=median,
        mad=statistics.median(abs(value - median) for value in values),
    )


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The ratio of two sides, round by round, so that what both of them met cancels out."""
    return spread([a / b for a, b in zip(numerators, denominators, strict=True)])


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """Return the order of measurements: A B, B A, A B ... so that a drift affects all alike."""
    return [*names] if turn % 2 == 0 else [*reversed(names)]


# --- the machine ----------------------------------------------------------------------------------


CONGESTION_FILE: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_PACKAGES: Final = ("torch", "numpy", "uvloop", "xxhash", "cryptography")


def machine() -> dict[str, str | int]:
    """Processor, memory, kernel and versions, and how busy it was."""
    chosen = CONGESTION_FILE.read_text().strip() if CONGESTION_FILE.exists() else "unknown"
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": ".".join(platform.release().split(".")[:2]).split("-")[0],
        "python": platform.python_version(),
        "dtd": __version__,
        **{package: version(package) for package in _PACKAGES},
        "congestion_control": chosen,
        "load_before": f"{os.getloadavg()[0]:.1f}",
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# --- records --------------------------------------------------------------------------------------


DIRECTORY: Final = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
_DIGITS: Final = 5

Record = dict[str, Any]


def load(kind: str, directory: Path) -> list[Record]:
    """The records of one subcommand; empty when it was never run."""
    path = directory / f"{kind}.json"
    return list(json.loads(path.read_text())["records"]) if path.exists() else []


def keep(
    kind: str,
    records: Sequence[Record],
    key: Sequence[str],
    options: argparse.Namespace,
    line: str,
) -> None:
    """Save records where the options say, and print this line, or each of them as JSON.

    They take the place of those of the same case; the file has a line for each.
    """
    known = (*load(kind, options.directory), *records)
    cases = {tuple(record[name] for name in key): record for record in known}
    lines = ",\n".join(_lines([cases[case] for case in sorted(cases, key=str)]))
    options.directory.mkdir(parents=True, exist_ok=True)
    (options.directory / f"{kind}.json").write_text(f'{{"records": [\n{lines}\n]}}\n')
    print("\n".join(_lines(records)) if options.json else line, flush=True)


def _lines(records: Sequence[Record]) -> list[str]:
    return [json.dumps(_rounded(record), sort_keys=True) for record in records]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value


# --- in words -------------------------------------------------------------------------------------


MIB: Final = 1 << 20
NOTHING: Final = "-"
_UNITS: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def size_text(size_bytes: int) -> str:
    """4096 -> "4 KiB"."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def time_text(seconds: float) -> str:
    """Three digits in the unit that fits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def header(records: Sequence[Record]) -> str:
    """Describe the machines of the measurements, one a line."""
    loads: dict[str, list[float]] = {}
    for record in records:
        about = record["machine"]
        line = (
            f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux"
            f" {about['kernel']}, Python {about['python']}, torch {about['torch']}, uvloop"
            f" {about['uvloop']}; dtd {about['dtd']}; congestion control"
            f" {about['congestion_control']}; one thread a rank; load before the runs"
        )
        loads.setdefault(line, []).append(float(about["load_before"]))
    return "\n".join(f"- {line} {min(values)} to {max(values)}." for line, values in loads.items())
