"""Tables of metrics, of diagnostics and of the transitions between states."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from dtd import diagnostics
from dtd.cluster.transitions import GENERATION, JOB, MEMBER, WORKER, Table
from dtd.diagnostics import Diagnostic
from dtd.observe.metrics.catalogue import METRICS
from scripts import markdown

_AT: Final = "HOST:PORT"
_HERE: Final = "unix:/PATH"


def metrics() -> str:
    """All metrics."""
    return markdown.table(
        ["metric", "type", "labels", "served by", "meaning"],
        (
            [
                f"`{metric.name}`",
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels),
                " and ".join(metric.served_by),
                metric.meaning,
            ]
            for metric in METRICS
        ),
    )


def troubles_table() -> str:
    """All diagnostics, with what to do."""
    rows = ([f"`{one.kind}`", one.message, one.remedy] for one in samples())
    return markdown.table(["kind", "says", "do"], rows)


def samples() -> list[Diagnostic]:
    """Every diagnostic once, with placeholders for what varies."""
    calling = [diagnostics.no_tls(_AT, cause) for cause in diagnostics.TLS_CAUSES_WHEN_CALLING]
    called = [
        diagnostics.turned_away("HOST", cause) for cause in diagnostics.TLS_CAUSES_WHEN_CALLED
    ]
    return [
        diagnostics.no_answer(_AT, 5.0),
        diagnostics.nobody_listens(_AT),
        diagnostics.cannot_call(_AT, "WHY"),
        *calling,
        diagnostics.hung_up(_AT),
        diagnostics.hung_up(_HERE),
        diagnostics.may_not_open(_HERE, 1000),
        diagnostics.not_followed(_HERE, "WHY", "what the sentence is about"),
        diagnostics.refused(_AT, "WHY", "what the coordinator proposes"),
        *called,
        diagnostics.turned_away("HOST", "WHY", "what the sentence is about"),
        diagnostics.versions_differ(
            "NAME", "HOST", "0.2.0", coordinator_host="HOST2", ours="0.1.0"
        ),
        diagnostics.protocol_differs("HOST"),
        diagnostics.unfit(
            "NAME",
            "HOST",
            "NAME has other code of the task: have `dtdctl submit` ship"
            " it, or install the same version on both",
        ),
        diagnostics.unfit("NAME", "HOST", "its dataset has 10 rows, not 12"),
        diagnostics.set_aside("NAME", "HOST", "WHY"),
        diagnostics.name_taken("NAME", "HOST (pid 1)", "HOST2 (pid 2)"),
        diagnostics.no_way("NAME", _AT, "NAME2", "HOST2:PORT"),
        diagnostics.narrow_way("NAME", _AT, "NAME2", "HOST2:PORT"),
        diagnostics.one_way("NAME", "NAME2", "HOST2:PORT"),
        diagnostics.data_port_closed("NAME", _AT, "WHY"),
        diagnostics.data_port_narrow("NAME", _AT, "WHY"),
        diagnostics.cannot_listen(_AT, "is in use"),
        diagnostics.stands_still(
            "NAME",
            "HOST",
            "its training thread has been stuck in task.py:12 in loss for 9.0 s (nothing has moved"
            " for 9.0 s; elastic.stall_timeout_s allows 5 s)",
            "no other worker that makes progress holds step 40",
        ),
        diagnostics.disk("NAME", "WHY"),
    ]


# --- transitions ----------------------------------------------------------------------------------

_TRANSITIONS: Final = """\
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
        "A job has no generation at first, nor between two of them.",
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


def transitions() -> str:
    """The whole page docs/transitions.md."""
    parts = [_TRANSITIONS]
    for table, title, text in _TABLES:
        parts.append(f"\n## {title}\n\n{text}\n\n{_transition_rows(table)}\n")
    return "".join(parts)


def _transition_rows(table: Table[Any, Any, Any]) -> str:
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
