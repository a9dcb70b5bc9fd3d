"""Names of models, their versions and aliases.  Pure.

A model's name and an alias follow the rule for names of jobs.  NAME@3 is its third version,
NAME@production the one that the alias stands for, NAME alone the newest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from dtd.errors import RequestRefused, UsageError
from dtd.names import NAME_WORDS, is_name
from dtd.rules import did_you_mean
from dtd.shown import shown

MARK: Final = "@"
MAX_COPIES: Final = 16
_HASH_CHARACTERS: Final = 12


def parse_reference(text: str) -> tuple[str, str]:
    """Read NAME, NAME@NUMBER or NAME@ALIAS; the second part is empty for the newest version.

    Raises:
        UsageError: it is none of them.
    """
    name, mark, which = text.partition(MARK)
    if not is_name(name) or (mark and not is_name(which)):
        raise UsageError(
            f"{shown(text)} names no model",
            remedy="write NAME, NAME@NUMBER or NAME@ALIAS, for example digits@production",
        )
    return name, which


def check_name(name: str, what: str) -> None:
    """Check the name of a new model or alias.

    Raises:
        RequestRefused: it is not valid.
    """
    if not is_name(name):
        raise RequestRefused(f"{shown(name)} is not a name of {what}", remedy=f"use {NAME_WORDS}")


def check_alias(alias: str) -> None:
    """Check a new alias: a number would be taken for a version.

    Raises:
        RequestRefused: it is not valid.
    """
    check_name(alias, "an alias")
    if alias.isdigit():
        raise RequestRefused(
            f"{shown(alias)} would be taken for the number of a version",
            remedy="use a word, for example production",
        )


def resolved(name: str, which: str, numbers: Sequence[int], aliases: Mapping[str, int]) -> int:
    """The number of the version that NAME@WHICH stands for.

    Args:
        name: of the model, for messages.
        which: a number, an alias, or empty for the newest.
        numbers: of its versions; at least one.
        aliases: the model's.

    Raises:
        RequestRefused: there is no such version or alias.
    """
    if not which:
        return max(numbers)
    if which.isdigit():
        if int(which) in numbers:
            return int(which)
        raise RequestRefused(
            f"model {name} has no version {which}",
            remedy=f"its versions: {', '.join(map(str, sorted(numbers)))}",
        )
    if which in aliases:
        return aliases[which]
    raise RequestRefused(
        f"model {name} has no alias {shown(which)}{did_you_mean(which, aliases)}",
        remedy=f"set it with: dtdctl models alias {name}@{which} VERSION",
    )


def version_id(store_id: str, registered_ns: int, name: str, number: int) -> str:
    """Return a version's id on workers: the same number, given again, has another id."""
    text = f"{store_id}.{registered_ns}.{name}.{number}"
    return f"{name}.v{number}.{hashlib.blake2b(text.encode()).hexdigest()[:_HASH_CHARACTERS]}"
