"""`scripts/bench report`: the tables of docs/benchmarks.md, from the measurements.

What is between two marks is written here; the prose around them is written by people and kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

from scripts import markdown
from scripts.benchrun import allreduce, memory, sharded, strategies, train
from scripts.benchrun.results import Record, load
from scripts.benchrun.sharded_table import sharded_tables
from scripts.benchrun.strategy_table import strategies_tables
from scripts.benchrun.tables import (
    allreduce_tables,
    header,
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
}


def run(options: argparse.Namespace) -> None:
    """Rewrite the tables of all that was measured."""
    for kind in TABLES:
        content = f"\n{section(kind, load(kind, options.directory), TABLES[kind])}\n"
        markdown.put_into(options.document, kind, WRITTEN_BY, content)


def section(kind: str, records: Sequence[Record], make: Callable[[Sequence[Record]], str]) -> str:
    """Return the text between the markers of a subcommand."""
    if not records:
        return f"Not measured yet: `scripts/bench {kind}`."
    return f"{header(records)}\n\n{make(records)}"
