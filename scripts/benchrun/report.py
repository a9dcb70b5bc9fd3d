"""`scripts/bench report`: the tables and plots of docs/benchmarks.md, from the measurements.

What is between two marks is written here; the prose around them is written by people and kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dtd.errors import DtdError
from scripts import markdown
from scripts.benchrun import allreduce, memory, quality, sharded, strategies, train
from scripts.benchrun.results import Record, load
from scripts.benchrun.sharded_table import sharded_tables
from scripts.benchrun.strategy_table import strategies_tables
from scripts.benchrun.tables import (
    allreduce_tables,
    header,
    quality_tables,
    train_tables,
)
from scripts.cluster.cluster import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "benchmarks.md"
WRITTEN_BY: Final = "scripts/bench report"
TABLES: Final[dict[str, Callable[[Sequence[Record]], str]]] = {
    allreduce.KIND: allreduce_tables,
    train.KIND: train_tables,
    strategies.KIND: strategies_tables,
    sharded.KIND: sharded_tables,
    memory.KIND: memory.memory_table,
    quality.KIND: quality_tables,
}


def run(options: argparse.Namespace) -> None:
    """Rewrite the document and the plots of all that was measured."""
    for kind in TABLES:
        write(kind, options.directory, options.document)


def write(kind: str, directory: Path, document: Path) -> None:
    """Draw the plot of one subcommand, and rewrite its part of the document."""
    records = load(kind, directory)
    content = f"\n{section(kind, records, TABLES[kind])}\n"
    markdown.put_into(document, kind, WRITTEN_BY, content)
    if records:
        _plot(kind, records, directory)


def section(kind: str, records: Sequence[Record], make: Callable[[Sequence[Record]], str]) -> str:
    """Return the text between the markers of a subcommand."""
    if not records:
        return f"Not measured yet: `scripts/bench {kind}`."
    return f"{header(records)}\n\n![{kind}](benchmarks/{kind}.svg)\n\n{make(records)}"


def _plot(kind: str, records: Sequence[Record], directory: Path) -> None:
    try:
        from scripts.benchrun import plots
    except ModuleNotFoundError as error:
        raise DtdError(
            f"{error.name} is not installed, which draws the plots",
            remedy="start this as scripts/bench",
        ) from error
    draw = {
        allreduce.KIND: plots.plot_allreduce,
        train.KIND: plots.plot_train,
        strategies.KIND: plots.plot_strategies,
        sharded.KIND: plots.plot_sharded,
        memory.KIND: plots.plot_memory,
        quality.KIND: plots.plot_quality,
    }
    draw[kind](records, directory / f"{kind}.svg")
