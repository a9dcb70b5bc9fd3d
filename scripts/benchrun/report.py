"""`scripts/bench report`: the tables and plots of docs/benchmarks.md, from what was measured.

What is between two marks is written here; the prose around them is written by people and kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dtd.errors import DtdError
from scripts import markdown
from scripts.benchrun import allreduce, convergence, train
from scripts.benchrun.results import Record, load
from scripts.benchrun.tables import allreduce_tables, convergence_table, header, train_tables
from scripts.cluster.cluster import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "benchmarks.md"
WRITTEN_BY: Final = "scripts/bench report"
TABLES: Final[dict[str, Callable[[Sequence[Record]], str]]] = {
    allreduce.KIND: allreduce_tables,
    train.KIND: train_tables,
    convergence.KIND: convergence_table,
}


def run(options: argparse.Namespace) -> None:
    """Rewrite the document and the plots of all that was measured."""
    text = options.document.read_text()
    for kind, make in TABLES.items():
        records = load(kind, options.directory)
        content = f"\n{section(kind, records, make)}\n"
        text = markdown.replaced(text, kind, WRITTEN_BY, content)
        if records:
            _plot(kind, records, options.directory)
    options.document.write_text(text)


def section(kind: str, records: Sequence[Record], make: Callable[[Sequence[Record]], str]) -> str:
    """What stands between the markers of a subcommand."""
    if not records:
        return f"Not measured yet: `scripts/bench {kind}`."
    return f"{header(records)}\n\n![{kind}](benchmarks/{kind}.svg)\n\n{make(records)}"


def _plot(kind: str, records: Sequence[Record], directory: Path) -> None:
    try:
        from scripts.benchrun import plots
    except ModuleNotFoundError as error:
        raise DtdError(
            f"{error.name} is not installed, which draws the plots",
            remedy="start this as scripts/bench report",
        ) from error
    draw = {
        allreduce.KIND: plots.plot_allreduce,
        train.KIND: plots.plot_train,
        convergence.KIND: plots.plot_convergence,
    }
    draw[kind](records, directory / f"{kind}.svg")
