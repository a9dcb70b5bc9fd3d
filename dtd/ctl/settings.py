"""What holds for every dtdctl command: whom to ask, and in which form to answer.

`--coordinator` and `-o` may stand before or after the command's name; `take_settings` collects them
from wherever they are.  Precedence: flag, DTD_COORDINATOR, default.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dtd.address import Address
from dtd.errors import UsageError
from dtd.net.control_client import ControlClient

ADDRESS_VARIABLE: Final = "DTD_COORDINATOR"
DEFAULT_ADDRESS: Final = "127.0.0.1:7117"
FORMS: Final = ("table", "json")
_OPTIONS: Final = {"--coordinator": "coordinator", "--output": "output", "-o": "output"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whom to ask, and how to print."""

    address: Address
    as_json: bool

    def connect(self) -> ControlClient:
        """Open a connection to the coordinator."""
        return ControlClient(self.address)


def take_settings(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split off the options that every command has; everything after `--` stays.

    Returns:
        (the options' last values by name, the other arguments in order)

    Raises:
        UsageError: an option lacks its value.
    """
    values: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        option, joined, value = word.partition("=")
        if word.startswith("-o") and word not in _OPTIONS:
            option, joined, value = "-o", "=", word[2:].removeprefix("=")
        if option not in _OPTIONS:
            rest.append(word)
            continue
        if not joined:
            value = next(words, "")
        if not value:
            raise UsageError(f"{option} needs a value", remedy=_example(option))
        values[_OPTIONS[option]] = value
    return values, rest


def make_settings(values: dict[str, str]) -> Settings:
    """Check the collected values and fill in the environment's and the defaults.

    Raises:
        UsageError: a value is not one of those allowed.
    """
    form = values.get("output", FORMS[0])
    if form not in FORMS:
        raise UsageError(f"-o: {form!r} is not a form of output", remedy=_example("-o"))
    typed = values.get("coordinator")
    source = "--coordinator" if typed else ADDRESS_VARIABLE
    text = typed or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    return Settings(address=read_address(text, source=source), as_json=form == "json")


def read_address(text: str, *, source: str) -> Address:
    """An address as typed; the error names the flag or variable it came from.

    Raises:
        UsageError: it is not an address.
    """
    try:
        return Address.parse(text)
    except UsageError as error:
        remedy = f"write HOST:PORT, for example {DEFAULT_ADDRESS}"
        raise UsageError(f"{source} {error.message}", remedy=remedy) from None


def _example(option: str) -> str:
    if option == "--coordinator":
        return f"write {option} HOST:PORT, for example {option} {DEFAULT_ADDRESS}"
    return f"write {option} {' or '.join(FORMS)}"
