"""docs/events.md: from the registry of names and from the code that uses them.

Levels and fields are read from the calls, as far as they are literals there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dtd.cluster.transitions import JobState
from dtd.coordinator.core import QUIET_INCIDENTS
from dtd.event_names import EVENTS, INCIDENTS, NOTICES
from scripts import markdown

_ROOT: Final = Path(__file__).resolve().parents[2]
_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
_LOGGERS: Final = frozenset({"log", "_log", "get_logger"})
_REPORTERS: Final = frozenset({"reporter", "_reporter"})
"""Names of reporters: their warnings become a NOTICE, and that an incident."""
_WARNERS: Final = frozenset({"warn", "_warn"})
"""Names of a `dtd.train.record.WarningThrottle` where it is kept."""
_INCIDENT_PARAMETERS: Final = frozenset({"worker", "step", "job"})

_INTRODUCTION: Final = """\
# Events

<!-- Written by scripts/gen_docs; change dtd/event_names.py, not this page. -->

Both daemons log one JSON object per line to standard output: `ts` (UTC), `level`, `event`, and
fields of the event's own. Under systemd each line carries its priority, so `journalctl -p warning`
works. Errors that keep a daemon from starting are one sentence on standard error, with exit code 78
where settings are to blame. What a job's own code prints is `job_output` in the worker's log, and
`dtdctl logs JOB`. Native code that bypasses Python (warnings of torch, Gloo and CUDA, the last
words of a crash) writes plain text to standard error, so a reader of both streams, such as the
journal, must expect lines that are not JSON.

Names are stable: a name is never given a new meaning. A worker's lines carry `job`, `generation`
and `rank` while they are known. Fields named like secrets (`secret`, `token`, `key`, `ticket`,
`password`) are blanked, and so are join tokens and private keys within texts.

"""
_INCIDENTS_INTRODUCTION: Final = """\
## Incidents

The coordinator remembers these; `dtdctl events` shows them, `dtd_incidents_total` counts them, and
its log has each of them as an event with the fields `message`, `job`, `worker`, `generation` and
`step`, and those below. A worker itself reports those marked with * (NOTICE), and no others: any
other report ends its connection.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One place in the code that names an event or a kind of incident."""

    name: str
    kind: str
    level: str
    fields: tuple[str, ...]
    where: str


def uses(root: Path = _ROOT / "dtd") -> Iterator[Use]:
    """Every use of a name that stands in the code as a literal."""
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root.parent)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                yield from _uses_of(node, node.func, f"{file}:{node.lineno}")
            elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
                # The event and the message of a warning that is given later.
                where = f"{file}:{node.lineno}"
                for name in NOTICES.intersection(_names(node.elts[0])):
                    yield Use(name=name, kind="incident", level="warning", fields=(), where=where)


def _uses_of(call: ast.Call, called: ast.Attribute, where: str) -> Iterator[Use]:
    owner = _owner(called.value)
    fields = tuple(word.arg for word in call.keywords if word.arg is not None)
    if called.attr in ("incident", "_tell_operators"):
        more = tuple(field for field in fields if field not in _INCIDENT_PARAMETERS)
        for name in _names(call.args[0]):
            level = "info" if name in QUIET_INCIDENTS else "warning"
            yield Use(name=name, kind="incident", level=level, fields=more, where=where)
    elif called.attr in _LEVELS and owner in _LOGGERS:
        for name in _names(call.args[0]):
            level = _LEVELS[called.attr]
            yield Use(name=name, kind="event", level=level, fields=fields, where=where)
    elif called.attr == "notice" and owner in _REPORTERS:
        for name in _names(call.args[0]):
            level = "info" if name in QUIET_INCIDENTS else "warning"
            yield Use(name=name, kind="incident", level=level, fields=(), where=where)
    elif called.attr in _WARNERS or (called.attr == "warning" and owner in _REPORTERS):
        for name in _names(call.args[0]):
            yield Use(name=name, kind="incident", level="warning", fields=(), where=where)


def _owner(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _owner(node.func)
    if isinstance(node, ast.Attribute):
        return _owner(node.value) if node.attr == "bind" else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.expr) -> list[str]:
    """The literal, or what an f-string of a job's state can become."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
        stem = str(node.values[0].value)
        states = (f"{stem}{state.value}" for state in JobState)
        return [name for name in states if name in INCIDENTS]
    return []


def render() -> str:
    """The whole page."""
    found = list(uses())
    return (
        _INTRODUCTION
        + _table("## Events", EVENTS, [use for use in found if use.kind == "event"])
        + "\n"
        + _INCIDENTS_INTRODUCTION
        + _table("", INCIDENTS, [use for use in found if use.kind == "incident"])
    )


def _table(title: str, names: Mapping[str, str], found: list[Use]) -> str:
    rows = []
    for name in sorted(names):
        mine = [use for use in found if use.name == name]
        levels = ", ".join(sorted({use.level for use in mine})) or "any"
        fields = ", ".join(f"`{one}`" for one in dict.fromkeys(f for u in mine for f in u.fields))
        reported = " *" if name in NOTICES else ""
        rows.append([f"`{name}`{reported}", levels, fields, names[name]])
    table = markdown.table(["name", "level", "fields", "meaning"], rows)
    return (f"{title}\n\n" if title else "") + table + "\n"
