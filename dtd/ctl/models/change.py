"""`dtdctl models alias`, `card`, `copy` and `delete`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from dtd import figures
from dtd.ctl import output
from dtd.ctl.answers import Answer, ask, ask_and_show
from dtd.ctl.models.show import one_version, size_of
from dtd.ctl.settings import Settings
from dtd.errors import RequestRefused, UsageError
from dtd.registry.names import MARK, parse_reference
from dtd.wire import messages as m

_STDIN: Final = Path("-")


def set_alias(settings: Settings, text: str, version: int) -> int:
    """Have NAME@ALIAS stand for a version; 0 removes the alias.

    Raises:
        RequestRefused: there is no such version, or the alias is not valid.
        UsageError: the text names no alias.
    """
    name, alias = parse_reference(text)
    if not alias:
        raise UsageError(
            f"{text!r} names no alias",
            remedy=f"write NAME@ALIAS, for example {name}@production",
        )

    def tell(_answer: Answer) -> None:
        what = f"stands for version {version}" if version else "is removed"
        output.say(f"{name}@{alias} {what}")

    ask_and_show(settings, m.AliasModel(name=name, alias=alias, version=version), tell)
    return 0


def write_card(settings: Settings, text: str, file: Path) -> int:
    """Replace the text of a version's card by a file's.

    Raises:
        RequestRefused: there is no such version, or the text is too long.
        UsageError: the file cannot be read.
    """
    content = read_text(file)
    version = one_version(settings, text)
    name, number = version["name"], version["number"]

    def tell(_answer: Answer) -> None:
        output.say(f"the card of {name}@{number} has a new text of {len(content)} characters")

    ask_and_show(settings, m.DescribeModel(name=name, version=number, card=content), tell)
    return 0


def read_text(file: Path) -> str:
    """The text of a file, or of stdin for `-`.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return sys.stdin.read() if file == _STDIN else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def copy(settings: Settings, text: str) -> int:
    """Have the copies made that a version lacks, or with a name alone all of the model.

    Raises:
        RequestRefused: there is none, or no connected worker keeps a copy of it.
    """
    name, which = parse_reference(text)
    number = one_version(settings, text)["number"] if which else 0
    ask_and_show(settings, m.CopyModel(name=name, version=number), _say_copies)
    return 0


def _say_copies(answer: Answer) -> None:
    for one in answer["models"]:
        there = f"{len(one['connected'])} of {one['copies']} copies are on connected workers"
        making = f"; being made on {', '.join(one['copying'])}" if one["copying"] else ""
        output.say(f"{one['name']}@{one['number']}: {there}{making}")


def delete(settings: Settings, text: str, *, confirmed: bool) -> int:
    """Delete a version, or with a name alone all of the model.

    Raises:
        UsageError: there is no terminal for a confirmation, and no --yes.
        RequestRefused: there is none, an alias stands for it, or the user refuses.
    """
    name, which = parse_reference(text)
    going = ask(settings, m.ListModels(name=name, version=which))["models"]
    for one in going:
        for alias in one["aliases"]:
            raise RequestRefused(
                f"{name}@{alias} stands for version {one['number']}",
                remedy="have it stand for another one, or remove it:"
                f" dtdctl models alias {name}@{alias} 0",
            )
    if not confirmed:
        _confirm(name, going)
    number = going[0]["number"] if MARK in text else 0
    ask_and_show(settings, m.DeleteModel(name=name, version=number), _say_deleted)
    return 0


def _confirm(name: str, going: list[Answer]) -> None:
    numbers = ", ".join(str(one["number"]) for one in going)
    size = figures.size(sum(size_of(one) * len(one["holders"]) for one in going))
    output.say(f"this deletes version {numbers} of {name}: {size} on workers")
    output.confirm_deletion()


def _say_deleted(answer: Answer) -> None:
    for one in answer["models"]:
        away = [name for name in one["holders"] if name not in one["connected"]]
        later = f"; {', '.join(away)} will delete it when connected" if away else ""
        output.say(f"{one['name']}@{one['number']} is deleted{later}")
