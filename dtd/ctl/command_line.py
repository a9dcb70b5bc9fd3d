"""The parts of dtdctl's command line: a command with its arguments, the parser, help, completion.

`dtd.ctl.commands` is the table of all commands.  A line is split into the words that name a command
and the rest, which argparse reads; the result is the keyword arguments of the command's function.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from dtd.errors import UsageError

PROGRAM: Final = "dtdctl"
HELP_FLAGS: Final = frozenset({"-h", "--help"})
_WIDTH: Final = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A positional argument or an option, as `argparse.ArgumentParser.add_argument` takes it."""

    names: tuple[str, ...]
    options: Mapping[str, Any]


def argument(name: str, metavar: str, meaning: str, **options: Any) -> Argument:
    """Return a positional argument; `options` are further keywords of `add_argument`."""
    return Argument(names=(name,), options={"metavar": metavar, "help": meaning, **options})


def option(
    flags: str | tuple[str, ...], metavar: str | None, meaning: str, **options: Any
) -> Argument:
    """Return an option with a value; without a default it is None."""
    names = (flags,) if isinstance(flags, str) else flags
    return Argument(names=names, options={"metavar": metavar, "help": meaning, **options})


def switch(flags: str | tuple[str, ...], meaning: str, **options: Any) -> Argument:
    """Return an option without a value."""
    names = (flags,) if isinstance(flags, str) else flags
    return Argument(names=names, options={"action": "store_true", "help": meaning, **options})


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        name: its words, such as "models fetch".
        function: module in `dtd.ctl` and function, such as "models:fetch"; it gets the settings and
            the arguments by name, and returns the exit code if that is not 0.
        help: a sentence, then perhaps a paragraph.
        arguments: what may follow the name.
    """

    name: str
    function: str
    help: str
    arguments: tuple[Argument, ...] = ()


def command(name: str, function: str, meaning: str, *arguments: Argument) -> Command:
    """Return a `Command`; the parameters are its attributes."""
    return Command(name=name, function=function, help=meaning, arguments=arguments)


def number(kind: Callable[[str], float], *, least: float, most: float = math.inf) -> Any:
    """Return a reader of numbers within bounds, as argparse's `type`."""

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            bounds = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {text}")
        return value

    read.__name__ = "number" if kind is float else "integer"  # argparse names it in errors
    return read


def names(text: str) -> tuple[str, ...]:
    """Read words with commas between."""
    return tuple(word for word in text.split(",") if word)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong line as any other failure of dtdctl."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", remedy=f"{self.prog} --help")


def read_arguments(command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Read the words after a command's name.

    Raises:
        UsageError: they do not fit the command.
    """
    parser = _parser(command)
    # The second one reads options after "--", too.
    parse = parser.parse_args if "--" in words else parser.parse_intermixed_args
    return vars(parse(words))


def command_help(command: Command) -> str:
    """Return a command's help."""
    return _parser(command).format_help()


def _parser(command: Command) -> argparse.ArgumentParser:
    summary, _, more = command.help.partition("\n\n")
    text = "\n\n".join(textwrap.fill(part, _WIDTH) for part in (summary, more) if part)
    parser = _Parser(
        prog=f"{PROGRAM} {command.name}",
        description=text,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for one in command.arguments:
        parser.add_argument(*one.names, **one.options)
    return parser


def list_help(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines that list names with their meaning."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows) + 4
    lines = []
    for name, meaning in rows:
        wrapped = textwrap.wrap(meaning, _WIDTH - width)
        lines.append(f"  {name:<{width - 2}}{wrapped[0]}")
        lines += [" " * width + line for line in wrapped[1:]]
    return lines


def flags_of(command: Command) -> list[str]:
    """Return the flags that a command has, its own help included."""
    own = [name for one in command.arguments for name in one.names if name.startswith("-")]
    return [*own, "--help"]
