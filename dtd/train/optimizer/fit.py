"""Whether an optimizer can continue from a saved state, and if not, what differs, by name.

torch takes over what it is given, by number, and fails in the middle of a step, or with a bare key;
everything is compared here before that, and named with both values.  Nothing is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from dtd.errors import CheckpointError
from dtd.shown import shown

REMEDY: Final = "use the optimizer that made it, or take over its weights only (--weights-from)"
_SCALARS: Final = ("step",)
"""Entries that have no dimension whatever the parameter has."""
_MOST_NAMED: Final = 4

Groups = Sequence[Mapping[str, Any]]
Names = Sequence[Sequence[str]]
"""Names of the parameters of each group, in the optimizer's order."""


def check_groups(own: Groups, saved: Groups, *, ours: Sequence[str]) -> None:
    """Compare the settings of parameter groups.

    Args:
        own: this job's, as state_dict() has them.
        saved: the state's.
        ours: settings that are no part of a state.

    Raises:
        CheckpointError: another number of groups, or settings that only one of the two has.
    """
    if len(own) != len(saved):
        raise CheckpointError(
            f"the state's optimizer has {len(saved)} parameter groups, this job's {len(own)}",
            remedy=REMEDY,
        )
    for number, (mine, theirs) in enumerate(zip(own, saved, strict=True)):
        known = {key: value for key, value in mine.items() if key not in ours}
        lacks = [f"{key} = {_words(known[key])}" for key in known if key not in theirs]
        extra = [
            f"{key} = {_words(theirs[key])}"
            for key in theirs
            if key not in mine and key not in ours
        ]
        if lacks or extra:
            where = f" in group {number}" if len(own) > 1 else ""
            raise CheckpointError(
                f"the state is of another optimizer{where}:{_listed(' it has', extra)}"
                f"{' and' if lacks and extra else ''}{_listed(' it lacks', lacks)}",
                remedy=REMEDY,
            )


def own_numbers(own: Names, saved: Names) -> list[int]:
    """Number in this job's optimizer of each parameter of the state's, in the state's order.

    Raises:
        CheckpointError: a parameter is in one of the two only, or in another group.
    """
    mine, theirs = (
        {name: number for number, names in enumerate(groups) for name in names}
        for groups in (own, saved)
    )
    found = [f"{name} is only in the state's" for name in theirs if name not in mine]
    found += [f"{name} is only in this job's" for name in mine if name not in theirs]
    found += [
        f"{name} is in group {group} of the state's and in group {mine[name]} of this job's"
        for name, group in theirs.items()
        if mine.get(name, group) != group
    ]
    if found:
        more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise CheckpointError(
            f"the state's optimizer and this job's have other parameters:"
            f" {'; '.join(found[:_MOST_NAMED])}{more}",
            remedy="train the same parameters in the same groups, or take over the state's weights"
            " only (--weights-from)",
        )
    number_of = {name: number for number, name in enumerate(chain.from_iterable(own))}
    return [number_of[name] for name in chain.from_iterable(saved)]


def check_entries(
    parameters: Sequence[tuple[str, Tensor]],
    state: Mapping[int, Mapping[str, Any]],
    *,
    exact: AbstractSet[int],
) -> None:
    """Compare the entries of parameters.

    Args:
        parameters: name and value of each that is trained, in the optimizer's order.
        state: entries by number of the parameter.
        exact: numbers of those that a fused kernel updates.  It takes state to be as long as its
            parameter, and writes beyond it if it is not; other optimizers may keep any shape.

    Raises:
        CheckpointError: one is of a parameter that is not there, or has not its parameter's shape.
    """
    for number, entries in sorted(state.items()):
        if number >= len(parameters):
            raise CheckpointError(
                f"the state's optimizer has {', '.join(sorted(entries))} of parameter {number},"
                f" and this job trains {len(parameters)}",
                remedy=REMEDY,
            )
        if number in exact:
            _check_shapes(*parameters[number], entries)


def _check_shapes(name: str, parameter: Tensor, entries: Mapping[str, Any]) -> None:
    for key, value in sorted(entries.items()):
        expected = torch.Size() if key in _SCALARS else parameter.shape
        if isinstance(value, Tensor) and value.shape != expected:
            raise CheckpointError(
                f"the state's optimizer has {key} of {name} as {tuple(value.shape)}, not"
                f" {tuple(expected)}",
                remedy=REMEDY,
            )


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return "none" if value is None else shown(value)


def _listed(word: str, found: Sequence[str]) -> str:
    if not found:
        return ""
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{word} {', '.join(found[:_MOST_NAMED])}{more}"
