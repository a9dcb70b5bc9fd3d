"""Reading of a job file or a map into a `JobSpec`, or into all of its problems.

Problems are collected under the path of their key; only when there are any is the text searched
for the lines on which those keys stand.  Anything but a `JobSpecError` that leaves this file for
some input is a bug.

`--set table.key=value` changes a value before it is checked.  It is read as TOML (`0.1`, `true`,
`[1, 2]`, `"text"`), and as a plain string where that fails.  The last of several overrides counts,
and setting one of `job.epochs` and `job.steps` takes the other one away, so that a job written in
epochs can be tried for a few steps.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Final, get_type_hints

from dtd.errors import JobSpecError
from dtd.job.checks import conflicts
from dtd.job.tables import BUILT_IN_TASKS, JobSpec
from dtd.rules import did_you_mean, fault, fields_of, without_none
from dtd.text.names import NAME_WORDS, is_name
from dtd.text.shown import INTEGER_LIMIT, shown
from dtd.text.toml_source import CONTENT_ERRORS, KeyPath, content_fault, key_lines, read_text

MAX_JOB_BYTES: Final = 24 * 1024
_TASK_DEPTH: Final = 8
_TASK: Final = "task"
_DATA: Final = "data"
_FREE: Final = (_TASK, _DATA)
"""Tables whose keys the user chooses."""
_TABLES: Final[Mapping[str, type]] = {
    name: hint for name, hint in get_type_hints(JobSpec).items() if name not in _FREE
}
MAX_DATA: Final = 16
MAX_PATH_CHARACTERS: Final = 1024
_RIVALS: Final = {("job", "epochs"): "steps", ("job", "steps"): "epochs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a key or a table, without the line on which it stands."""

    path: KeyPath
    text: str


def _apply_overrides(
    raw: dict[str, Any], overrides: Sequence[str]
) -> tuple[set[KeyPath], list[str]]:
    """Change `raw` in place; returns the keys that were set, and faults of the overrides."""
    assigned: set[KeyPath] = set()
    faults: list[str] = []
    for override in overrides:
        dotted, equals, text = override.partition("=")
        path = tuple(part.strip() for part in dotted.split("."))
        if not equals or len(path) < 2 or not all(path):
            faults.append(f"--set {shown(override)}: must read table.key=value")
        elif not assign(raw, path, _value(text.strip())):
            faults.append(f"--set {shown(override)}: {'.'.join(path[:-1])} is not a table")
        else:
            assigned.add(path)
    return assigned, faults


def assign(raw: dict[str, Any], path: KeyPath, value: object) -> bool:
    """Set a key in a job's map, and take away the one that it replaces; False: it has no table."""
    table: Any = raw
    for key in path[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return False
    table[path[-1]] = value
    if path in _RIVALS:
        table.pop(_RIVALS[path], None)
    return True


def _value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except CONTENT_ERRORS:
        return text
    value = parsed.pop("value")
    # A line break would bring in further keys, and no field takes a date: both are plain text.
    return text if parsed or isinstance(value, date | time) else value


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> JobSpec:
    """Read and check a job file; raises `JobSpecError`, also when it cannot be read."""
    try:
        text = read_text(Path(path), limit_bytes=MAX_JOB_BYTES)
    except OSError as error:
        raise JobSpecError(str(path), (f"cannot be read: {error.strerror or error}",)) from error
    except CONTENT_ERRORS as error:
        raise JobSpecError(str(path), (content_fault(error),)) from error
    return parse_job(text, source=str(path), overrides=overrides)


def parse_job(text: str, *, source: str, overrides: Sequence[str] = ()) -> JobSpec:
    """Check a job file's text, with changes of the form `table.key=value` applied before.

    Raises:
        JobSpecError: with every problem of the file, in file order; `source` names it.
    """
    try:
        raw = tomllib.loads(text)
    except CONTENT_ERRORS as error:
        raise JobSpecError(source, (content_fault(error),)) from error
    assigned, faults = _apply_overrides(raw, overrides)
    spec, problems = _read_spec(raw)
    if faults or problems:
        raise JobSpecError(source, (*faults, *located(problems, key_lines(text), assigned)))
    return spec


def to_mapping(spec: JobSpec) -> dict[str, Any]:
    """The spec as maps, lists and scalars, every field included, ready for msgpack or JSON."""
    return dataclasses.asdict(spec)


def from_mapping(mapping: object, *, source: str) -> JobSpec:
    """The reverse of `to_mapping`, with all the checks of a job file; trusts nothing."""
    if not isinstance(mapping, Mapping):
        raise JobSpecError(source, (f"must be a map of tables, not {shown(mapping)}",))
    spec, problems = _read_spec(mapping)
    if problems:
        raise JobSpecError(source, tuple(located(problems)))
    return spec


def default_settings() -> dict[str, Any]:
    """The default of every field that has one, as "table.key" -> value."""
    return {
        f"{name}.{key}": info.default
        for name, table in _TABLES.items()
        for key, info in fields_of(table).items()
        if not info.required
    }


def overridden(mapping: Mapping[str, Any], overrides: Sequence[str], *, source: str) -> JobSpec:
    """A spec's map with overrides as `parse_job` takes them, checked as a whole.

    Raises:
        JobSpecError: with every problem.
    """
    raw = copy.deepcopy(dict(mapping))
    assigned, faults = _apply_overrides(raw, overrides)
    spec, problems = _read_spec(raw)
    if faults or problems:
        raise JobSpecError(source, (*faults, *located(problems, assigned=assigned)))
    return spec


def located(
    problems: Iterable[Problem],
    lines: Mapping[KeyPath, int] | None = None,
    assigned: Collection[KeyPath] = (),
) -> Iterator[str]:
    """Problems as sentences in file order; those that belong to no line come last."""
    known = lines or {}

    def line_of(problem: Problem) -> float:
        if problem.path in assigned:
            return math.inf
        prefixes = (problem.path[:length] for length in range(len(problem.path), 0, -1))
        return next((known[prefix] for prefix in prefixes if prefix in known), math.inf)

    for problem in sorted(problems, key=line_of):
        line = line_of(problem)
        place = "--set: " if problem.path in assigned else ""
        yield f"{place if line == math.inf else f'line {line}: '}{_label(problem)}: {problem.text}"


def _label(problem: Problem) -> str:
    table, *keys = (
        key if key.isprintable() else ascii(key)[1:-1] for key in map(str, problem.path)
    )
    return f"[{table}] {'.'.join(keys)}".rstrip()


def _read_spec(raw: Mapping[Any, Any]) -> tuple[JobSpec, list[Problem]]:
    """The spec and its faults; where a field is wrong, a default stands in for it."""
    unknown = {name: value for name, value in raw.items() if name not in (*_TABLES, *_FREE)}
    problems = [
        Problem(path=(name,), text=_unknown_at_top(name, value)) for name, value in unknown.items()
    ]
    given: dict[str, Mapping[Any, Any]] = {}
    for name in (*_TABLES, *_FREE):
        value = raw.get(name, {})
        if isinstance(value, Mapping):
            given[name] = value
        else:
            problems.append(Problem(path=(name,), text=f"must be a table, not {shown(value)}"))
    tables = {
        name: read_table(name, table, given.get(name, {}), problems if name in given else [])
        for name, table in _TABLES.items()
    }
    task_problems = list(_task_problems(given.get(_TASK, {}), (_TASK,)))
    task = {} if task_problems else copy.deepcopy(dict(given.get(_TASK, {})))
    data_problems = list(_data_problems(given.get(_DATA, {})))
    data = {} if data_problems else dict(given.get(_DATA, {}))
    spec = JobSpec(task=task, data=data, **tables)
    problems += [*task_problems, *data_problems]
    faulty = {problem.path for problem in problems}
    problems += (
        Problem(path=conflict.fields[0], text=conflict.text)
        for conflict in conflicts(spec)
        if not any(path in faulty or path[:1] in faulty for path in conflict.fields)
    )
    return spec, problems


def read_table(name: str, table: type, given: Mapping[Any, Any], problems: list[Problem]) -> Any:
    """The table with the values that are valid, and defaults; adds the problems of the others."""
    known = fields_of(table)
    values: dict[str, Any] = {
        key: without_none(info.hint)() for key, info in known.items() if info.required
    }
    problems += (
        Problem(path=(name, key), text="is required")
        for key, info in known.items()
        if info.required and key not in given
    )
    for key, value in given.items():
        info = known.get(key)
        if info is None:
            problems.append(
                Problem(
                    path=(name, key),
                    text="unknown key" + (_elsewhere(key) or did_you_mean(str(key), known)),
                )
            )
            continue
        text = fault(info.hint, info.rule, value)
        if text and (name, key) == ("job", "task") and isinstance(value, str):
            text += did_you_mean(value, BUILT_IN_TASKS)
        if text:
            problems.append(Problem(path=(name, key), text=text))
        else:
            values[key] = float(value) if info.hint is float else value
    return table(**values)


def _unknown_at_top(name: object, value: object) -> str:
    if isinstance(value, Mapping):
        return "unknown table" + did_you_mean(str(name), (*_TABLES, *_FREE))
    return "every key must be in a table" + _elsewhere(name)


def _elsewhere(key: object) -> str:
    home = [f"[{name}]" for name, table in _TABLES.items() if key in fields_of(table)]
    return f"; it belongs to {' or '.join(home)}" if home else ""


def _data_problems(given: Mapping[Any, Any]) -> Iterator[Problem]:
    if len(given) > MAX_DATA:
        yield Problem(path=(_DATA,), text=f"has {len(given)} keys; the limit is {MAX_DATA}")
        return
    for name, path in given.items():
        here = (_DATA, str(name))
        if not isinstance(name, str) or not is_name(name):
            yield Problem(path=here, text=f"is not a name: {NAME_WORDS}")
        elif not (isinstance(path, str) and path.startswith("/") and path.isprintable()):
            text = "must be an absolute path, because workers share no working directory"
            yield Problem(path=here, text=f"{text}, not {shown(path)}")
        elif len(path) > MAX_PATH_CHARACTERS:
            text = f"has {len(path)} characters; the limit is {MAX_PATH_CHARACTERS}"
            yield Problem(path=here, text=text)


def _task_problems(given: Mapping[Any, Any], path: KeyPath) -> Iterator[Problem]:
    for key, value in given.items():
        here = (*path, str(key))
        if not isinstance(key, str) or not (
            key.isidentifier() if len(path) == 1 else _is_text(key)
        ):
            yield Problem(path=here, text="must be a name that Python accepts for an argument")
        elif isinstance(value, Mapping) and len(here) < _TASK_DEPTH:
            yield from _task_problems(value, here)
        elif text := _task_fault(value, len(here)):
            yield Problem(path=here, text=text)


def _task_fault(value: object, depth: int) -> str:
    """Why a task's argument cannot travel to the workers; empty when it can."""
    match value:
        case list() if depth < _TASK_DEPTH:
            return next(filter(None, (_task_fault(item, depth + 1) for item in value)), "")
        case Mapping() if depth < _TASK_DEPTH:
            inner = next(_task_problems(value, ("",) * depth), None)
            return "" if inner is None else f"{shown(inner.path[-1])} {inner.text}"
        case list() | Mapping():
            return f"is nested more than {_TASK_DEPTH} levels deep"
        case bool():
            return ""
        case str():
            return "" if _is_text(value) else f"is not valid text: {shown(value)}"
        case int():
            return "" if abs(value) <= INTEGER_LIMIT else "must fit 64 bits"
        case float():
            return "" if math.isfinite(value) else f"must be finite, not {value}"
    return f"must be a boolean, number, string, array or table, not {shown(value)}"


def _is_text(value: str) -> bool:
    """Whether UTF-8, and so the wire, can carry it: half a surrogate pair cannot travel."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
