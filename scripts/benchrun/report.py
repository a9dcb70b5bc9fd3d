"""`scripts/bench report`: the tables and plots of docs/benchmarks.md, from what was measured.

What stands between two markers is made here; the prose around them is written by people and kept.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from dtd.errors import DtdError
from scripts.benchrun import allreduce, convergence, train
from scripts.benchrun.results import Record, load
from scripts.benchrun.tables import allreduce_tables, convergence_table, header, train_tables
from scripts.chaosrun.cluster import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "benchmarks.md"
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
        text = put(text, kind, section(kind, records, make))
        if records:
            _plot(kind, records, options.directory)
    options.document.write_text(text)


def section(kind: str, records: Sequence[Record], make: Callable[[Sequence[Record]], str]) -> str:
    """What stands between the markers of a subcommand."""
    if not records:
        return f"Not measured yet: `scripts/bench {kind}`."
    return f"{header(records)}\n\n![{kind}](benchmarks/{kind}.svg)\n\n{make(records)}"


def put(text: str, kind: str, content: str) -> str:
    """The document with this content between the markers.

    Raises:
        DtdError: it has no such markers.
    """
    begin, end = f"<!-- {kind}: made by scripts/bench report -->", f"<!-- end of {kind} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(text):
        raise DtdError(
            f"the document has no place for {kind}",
            remedy=f'put the lines "{begin}" and "{end}" into it',
        )
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


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
