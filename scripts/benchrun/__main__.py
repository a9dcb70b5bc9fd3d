"""`scripts/bench`: measure, or make the report of the measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dtd.errors import DtdError
from scripts.benchrun import (
    allreduce,
    memory,
    report,
    results,
    sharded,
    strategies,
    train,
)
from scripts.cluster.processes import exit_on_stop_signals


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure dtd against torch.distributed, and report what was measured.",
    )
    commands = parser.add_subparsers(required=True)
    one = _command(commands, allreduce, "dtd's ring against Gloo and against the limit")
    one.add_argument("--sizes", type=_numbers, metavar="BYTES,...", help="default: 4 KiB..256 MiB")
    one.add_argument("--dtypes", type=_names, metavar="float32,bfloat16")
    one = _command(commands, train, "training steps against DDP, no synchronisation, one process")
    one.add_argument("--workloads", type=_names, metavar="NAME,...", help="default: all")
    one.add_argument("--links", type=_names, metavar="NAME,...", help="default: all")
    one.add_argument(
        "--bf16", action="store_true", help="gradients as bfloat16, too, not on slow links alone"
    )
    one = _command(commands, strategies, "strategies and codecs on slow links, against DDP's hooks")
    one.add_argument("--workloads", type=_names, metavar="NAME,...", help="default: paced-resnet18")
    one.add_argument("--links", type=_names, metavar="NAME,...", help="default: all")
    one.add_argument("--sides", type=_names, metavar="NAME,...", help="default: all")
    one = _command(commands, sharded, "sharded state against replicated, ZeRO and FSDP2")
    one.add_argument("--workloads", type=_names, metavar="NAME,...", help="default: paced-16")
    one.add_argument("--sides", type=_sides, metavar="NAME;...", help="default: all")
    _command(commands, memory, "memory of sharded state in a worker, beside the formula")
    one = commands.add_parser("report", help="make the tables of docs/benchmarks.md")
    _directory(one)
    _document(one)
    one.set_defaults(run=report.run)
    return parser


def _command(commands: Any, module: ModuleType, what: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(module.KIND, help=what)
    one.set_defaults(run=module.run)
    one.add_argument("--quick", action="store_true", help="seconds, to see that it works")
    one.add_argument("--worlds", type=_numbers, metavar="2,4", help="numbers of workers")
    one.add_argument("--rounds", type=int, metavar="R", help="how often each side has its turn")
    one.add_argument("--json", action="store_true", help="on stdout a record a line, as JSON")
    _directory(one)
    return one


def _document(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--document", type=Path, default=report.DOCUMENT, help="what is rewritten")


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--directory", type=Path, default=results.DIRECTORY, help="where the figures are kept"
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _sides(text: str) -> list[str]:
    """Names that may have commas."""
    return text.split(";")


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
