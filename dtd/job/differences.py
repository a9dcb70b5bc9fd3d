"""The settings in which jobs differ, and which must not where one continues another's state.

Pure; on specs as maps of tables, as `to_mapping` makes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dtd.errors import JobSpecError
from dtd.job.parse import default_settings, from_mapping, to_mapping
from dtd.text.names import MOST_STEPS
from dtd.text.shown import shown

Spec = Mapping[str, Any]

# What has columns of its own wherever jobs are listed.
_TASK: Final = "job.task"
_IDENTITY: Final = frozenset({"job.name", _TASK})
_PLAN: Final = frozenset({"job.global_batch_size", "job.seed"})
"""They decide which rows a step has, so the rows that are left would be others."""
_STRATEGY: Final = "strategy.name"
"""It decides which state there is beside the model."""
_SAME_STATE: Final = frozenset({"replicated", "sharded"})
"""Strategies whose states have the same content, wherever its parts are."""
_BY_THE_SCRIPT: Final = "set by the script"
_OF_EACH_STEP: Final = frozenset({"optimizer.lr"})
"""Settings of the optimizer that the job's schedule sets anew before each step."""


ARRAY_CHARACTERS: Final = 80


class Difference(NamedTuple):
    """A setting with two values; None where there is none."""

    setting: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.setting} {shown_value(self.was)} -> {shown_value(self.now)}"


def completed(spec: Spec) -> Spec:
    """The spec with every key of this dtd; unchanged when this dtd refuses it."""
    try:
        return to_mapping(from_mapping(spec, source="job"))
    except JobSpecError:
        return spec


def settings(spec: Spec) -> dict[str, Any]:
    """The spec flat, "table.key" -> value."""
    found: dict[str, Any] = {}
    for table, values in spec.items():
        found |= {f"{table}.{key}": value for key, value in dict(values).items()}
    if found.get("job.steps") == MOST_STEPS:
        found |= {"job.steps": _BY_THE_SCRIPT, "job.global_batch_size": _BY_THE_SCRIPT}
    return found


def differences(before: Spec, after: Spec) -> list[Difference]:
    """In which settings two specs differ, in the order of the second, but for name and task."""
    was, now = settings(completed(before)), settings(completed(after))
    return [
        Difference(key, was.get(key), now.get(key))
        for key in (*now, *(key for key in was if key not in now))
        if key not in _IDENTITY and was.get(key) != now.get(key)
    ]


def obstacles(found: Sequence[Difference]) -> list[Difference]:
    """Those of the differences with which no whole state can be taken over.

    Rows would be missed or repeated, the optimizer would keep the settings of its state
    whatever the job says, or the state is of another kind.
    """
    return [
        one
        for one in found
        if one.setting in _PLAN
        or (one.setting == _STRATEGY and not {one.was, one.now} <= _SAME_STATE)
        or (one.setting.startswith("optimizer.") and one.setting not in _OF_EACH_STEP)
    ]


def differing(specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """For each spec the settings in which those of the same task are not all alike.

    A job of an older dtd lacks the settings that came later; only the task's own count as
    different where they are missing.
    """
    flat = [settings(spec) for spec in specs]
    unlike = {task: _unlike(flat, task) for task in {one.get(_TASK) for one in flat}}
    return [
        {key: value for key, value in one.items() if key in unlike[one.get(_TASK)]} for one in flat
    ]


def _unlike(flat: Sequence[Mapping[str, Any]], task: Any) -> set[str]:
    """The settings that have several values in the jobs of a task."""
    alike = [one for one in flat if one.get(_TASK) == task]
    found = set()
    for key in {key for one in alike for key in one} - _IDENTITY:
        values = [one[key] for one in alike if key in one]
        lacks = key.startswith("task.") and len(values) < len(alike)
        if lacks or any(value != values[0] for value in values):
            found.add(key)
    return found


def shown_value(value: Any) -> str:
    """A setting's value in a message; a dash for none."""
    if value == _BY_THE_SCRIPT:
        return _BY_THE_SCRIPT
    if isinstance(value, list | tuple):
        text = json.dumps(value)
        most = ARRAY_CHARACTERS
        return text if len(text) <= most else f"{text[:most]}... ({len(value)} values)"
    return "-" if value is None else shown(value)


def changed_settings(spec: Spec) -> Iterator[tuple[str, str]]:
    """(table.key, value) of the settings that differ from their defaults."""
    usual = default_settings()
    for key, value in settings(spec).items():
        if key not in usual or usual[key] != value:
            yield key, shown_value(value)
