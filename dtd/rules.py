"""The values that a field of a settings dataclass allows, and the check of one value.

A field declares its `Rule` as dataclass metadata: what it means, its range, its pattern.  The job
file, the daemons' settings and the generated reference all read the same rule, so they cannot
disagree.  Types come from the annotation and are strict: a bool is no integer, an integer is
accepted where a number is meant, NaN and infinity are refused.

Nothing here knows where a value came from; callers put the file and the line in front of a fault.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from dtd.text.shown import INTEGER_LIMIT, SHOWN_CHARACTERS, shown

MAX_KEYS: Final = 64
"""Most keys of one table; each unknown one is compared with all known ones."""
_RULE: Final = "rule"
_WORDS: Final[Mapping[type, str]] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Meaning and limits of one field.

    Attributes:
        meaning: one sentence for the reference.
        minimum: smallest allowed number.
        above: numbers must be larger than this.
        maximum: largest allowed number.
        below: numbers must be smaller than this.
        pattern: regular expression that a whole string, or each key of a table, must match.
        wording: the pattern in words, to follow "must be".
        only_for: values of the table's `name` (of a strategy also of its `codec`) with which the
            field has an effect; empty: all.
    """

    meaning: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    pattern: str = ""
    wording: str = ""
    only_for: tuple[str, ...] = ()

    @property
    def bounds(self) -> str:
        """The range in words: "at least 1 and below 2", or nothing."""
        return " and ".join(
            f"{words} {bound}"
            for words, bound in (
                ("at least", self.minimum),
                ("above", self.above),
                ("at most", self.maximum),
                ("below", self.below),
            )
            if bound is not None
        )


def rule(meaning: str, **limits: Any) -> Mapping[str, Rule]:
    """Metadata for `dataclasses.field`; the keywords are the attributes of `Rule`."""
    return {_RULE: Rule(meaning=meaning, **limits)}


def setting(default: Any, meaning: str, **limits: Any) -> Any:
    """A dataclass field with a default and a `Rule`; the keywords are the attributes of `Rule`."""
    return dataclasses.field(default=default, metadata=rule(meaning, **limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
    """One field of a settings dataclass; `default` is `dataclasses.MISSING` where required."""

    name: str
    hint: Any
    rule: Rule
    default: Any

    @property
    def required(self) -> bool:
        """Whether the field has no default."""
        return self.default is dataclasses.MISSING


@functools.cache
def fields_of(table: type) -> dict[str, FieldInfo]:
    """The fields of a settings dataclass that carry a rule, by name, in order."""
    hints = get_type_hints(table)
    return {
        f.name: FieldInfo(
            name=f.name, hint=hints[f.name], rule=f.metadata[_RULE], default=f.default
        )
        for f in dataclasses.fields(table)
        if _RULE in f.metadata
    }


def without_none(hint: Any) -> Any:
    """`int` for `int | None`, the hint itself otherwise."""
    if get_origin(hint) is not types.UnionType or types.NoneType not in get_args(hint):
        return hint
    (kind,) = (part for part in get_args(hint) if part is not types.NoneType)
    return kind


def allowed(hint: Any, limits: Rule) -> str:
    """Describe a field's values, to follow "must be": "an integer, at least 1"."""
    kind = without_none(hint)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in get_args(kind))
    if limits.wording:
        return limits.wording
    return f"{_WORDS[kind]}, {limits.bounds}" if limits.bounds else _WORDS[kind]


def fault(hint: Any, limits: Rule, value: object) -> str:
    """Why the value does not fit the field, as one clause; empty when it fits."""
    if value is None and without_none(hint) is not hint:
        return ""
    kind = without_none(hint)
    if _fits(kind, limits, value):
        return ""
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    near = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"must be {allowed(hint, limits)}, not {shown(value)}{near}"


def _fits(kind: Any, limits: Rule, value: object) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(one, limits, value) for one in get_args(kind))
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if origin is dict:
        of_key, of_value = get_args(kind)
        return (
            isinstance(value, Mapping)
            and 0 < len(value) <= MAX_KEYS
            and all(_fits(of_key, limits, key) for key in value)
            and all(_fits(of_value, limits, one) for one in value.values())
        )
    if kind is str:
        return (
            isinstance(value, str)
            and value.isprintable()
            and (not limits.pattern or re.fullmatch(limits.pattern, value) is not None)
        )
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if isinstance(value, int):
        return abs(value) <= INTEGER_LIMIT and _in_range(limits, value)
    return (
        kind is float
        and isinstance(value, float)
        and math.isfinite(value)
        and _in_range(limits, value)
    )


def _in_range(limits: Rule, number: float) -> bool:
    return (
        (limits.minimum is None or number >= limits.minimum)
        and (limits.above is None or number > limits.above)
        and (limits.maximum is None or number <= limits.maximum)
        and (limits.below is None or number < limits.below)
    )


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` for the nearest known word, or nothing if none is near.

    Upper and lower case count as one: "adamW" is nearer to "adamw" than to "adam".
    """
    words = {word.casefold(): word for word in known}
    near = difflib.get_close_matches(typed[:SHOWN_CHARACTERS].casefold(), list(words), n=1)
    return f"; did you mean {json.dumps(words[near[0]])}?" if near else ""
