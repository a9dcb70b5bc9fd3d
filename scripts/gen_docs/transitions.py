"""docs/transitions.md, from the tables of `dtd.cluster.transitions`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from dtd.cluster.transitions import GENERATION, JOB, MEMBER, WORKER, Table
from scripts import markdown

_INTRODUCTION: Final = """\
# States and transitions

<!-- Written by scripts/gen_docs; change dtd/cluster/transitions.py, not this page. -->

Four things of the control plane have a state, and each has one table: which event may happen in
which states, which state follows, and what goes with it. A state is assigned only with what its
table says. An event that a table does not have for a state is a defect of dtd; a coordinator that
meets one begins again from its jobs (`core_begun_again`). The words are those of
[concepts.md](concepts.md).
"""
_TABLES: Final[tuple[tuple[Table[Any, Any, Any], str, str], ...]] = (
    (
        WORKER,
        "A worker, as the coordinator sees it",
        "It begins as *idle*; a new process begins anew. `dtdctl status` shows it.",
    ),
    (
        GENERATION,
        "The generation that the job runs in",
        "There is none at first, and none between two generations.",
    ),
    (
        JOB,
        "A job",
        "It begins as *queued*; one that is read from the store, in the state that it had.",
    ),
    (
        MEMBER,
        "A worker, as it sees itself",
        "It begins as *idle*. A message of another generation, or of another job, is no event.",
    ),
)


def render() -> str:
    """The whole document."""
    parts = [_INTRODUCTION]
    for table, title, text in _TABLES:
        parts.append(f"\n## {title}\n\n{text}\n\n{_rows(table)}\n")
    return "".join(parts)


def _rows(table: Table[Any, Any, Any]) -> str:
    states: Any = type(next(iter(table.rows[0].states)))
    return markdown.table(
        ["event", "in", "then", "and"],
        (
            [row.event, _named(row.states, states), row.state or "as before", row.action]
            for row in table.rows
        ),
    )


def _named(some: frozenset[StrEnum], states: Iterable[StrEnum]) -> str:
    """The states in their order; by those that are missing where most are meant."""
    every = list(states)
    missing = [one for one in every if one not in some]
    if not missing:
        return "any"
    if len(missing) <= 2 < len(some):
        return f"any but {', '.join(missing)}"
    return ", ".join(one for one in every if one in some)
