"""`scripts/bench`: measure, or make the tables of the measurements.

What is between two marks of docs/benchmarks.md is written here; the prose around them is kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from dtd.errors import DtdError
from scripts import markdown
from scripts.benchrun import allreduce, data, forecasts, memory, results, shares, steps
from scripts.benchrun.results import Record
from scripts.cluster.cluster import REPOSITORY
from scripts.cluster.processes import exit_on_stop_signals

DOCUMENT: Final = REPOSITORY / "docs" / "benchmarks.md"
WRITTEN_BY: Final = "scripts/bench report"
TABLES: Final[dict[str, Callable[[Sequence[Record]], str]]] = {
    allreduce.KIND: allreduce.tables,
    **{kind: partial(steps.tables, kind) for kind in steps.COMPARISONS},
    memory.KIND: memory.memory_table,
    shares.KIND: shares.shares_tables,
    data.KIND: data.data_table,
    forecasts.KIND: forecasts.tables,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    options = _parser().parse_args(arguments)
    exit_on_stop_signals()
    try:
        options.run(options)
    except DtdError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"try: {error.remedy}", file=sys.stderr)
        return error.exit_code
    return 0


def report(options: argparse.Namespace) -> None:
    """Rewrite the tables of all that was measured."""
    for kind, make in TABLES.items():
        if records := results.load(kind, options.directory):
            text = f"{results.header(records)}\n\n{make(records)}"
            markdown.put_into(options.document, kind, WRITTEN_BY, f"\n{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure dtd against torch.distributed, and report what was measured.",
    )
    commands = parser.add_subparsers(required=True, dest="kind")
    one = _command(
        commands, allreduce.KIND, allreduce.run, "dtd's ring against Gloo and against the limit"
    )
    one.add_argument("--sizes", type=_numbers, metavar="BYTES,...", help="default: 4 KiB..256 MiB")
    one.add_argument("--dtypes", type=_names, metavar="float32,bfloat16")
    one.add_argument(
        "--sides", type=_sides, metavar="NAME;...", help=f"of {'; '.join(allreduce.SIDES)}"
    )
    for kind, comparison in steps.COMPARISONS.items():
        one = _command(commands, kind, steps.run, comparison.what)
        usual = ", ".join(comparison.workloads)
        one.add_argument("--workloads", type=_names, metavar="NAME,...", help=f"default: {usual}")
        one.add_argument("--links", type=_names, metavar="NAME,...", help="default: all")
        sides = "; ".join(comparison.sides).replace("%", "%%")
        one.add_argument("--sides", type=_sides, metavar="NAME;...", help=f"of {sides}")
    _command(
        commands, memory.KIND, memory.run, "memory of sharded state in a worker, beside the formula"
    )
    _command(commands, shares.KIND, shares.run, "rows divided by speed, with unequal workers")
    one = _command(commands, data.KIND, data.run, "a job's data, from one host to two others")
    one.add_argument("--mbit", type=int, default=1000, help="rate of each link; default: 1000")
    one.add_argument("--mib", type=int, default=1907, help="size of the data; default: 1907")
    one = _command(
        commands, forecasts.KIND, forecasts.run, "a measured step beside the doctor's forecast"
    )
    one.add_argument("--links", type=_names, metavar="NAME,...", help="default: all")
    one = commands.add_parser("report", help="make the tables of docs/benchmarks.md")
    one.add_argument("--document", type=Path, default=DOCUMENT, help="the page to rewrite")
    one.add_argument("--directory", type=Path, default=results.DIRECTORY, help="of the figures")
    one.set_defaults(run=report)
    return parser


def _command(
    commands: Any, kind: str, run: Callable[[argparse.Namespace], None], what: str
) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(kind, help=what)
    one.set_defaults(run=run)
    one.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    one.add_argument("--worlds", type=_numbers, metavar="2,4", help="numbers of workers")
    one.add_argument("--rounds", type=int, metavar="R", help="how often each side has its turn")
    one.add_argument("--json", action="store_true", help="on stdout a record a line, as JSON")
    one.add_argument("--directory", type=Path, default=results.DIRECTORY, help="of the figures")
    return one


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _sides(text: str) -> list[str]:
    """Names that may have commas."""
    return text.split(";")


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
