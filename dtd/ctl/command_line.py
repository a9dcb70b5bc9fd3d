"""The parts of dtdctl's command line: a command with its arguments, the parser, and help.

`dtd.ctl.command_table` is the table of all commands.  A line is split into the words that name a
command and the rest, which argparse reads; the result is the keyword arguments of the command's
function.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from dtd.errors import UsageError

PROGRAM: Final = "dtdctl"
HELP_FLAGS: Final = frozenset({"-h", "--help"})
_WIDTH: Final = 80
_AGO: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_CLOCK: Final = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A positional argument or an option, as `argparse.ArgumentParser.add_argument` takes it.

    Attributes:
        named: what its value names, such as "job", for completion; empty: nothing known.
    """

    names: tuple[str, ...]
    options: Mapping[str, Any]
    named: str = ""


def argument(
    names: str | tuple[str, ...],
    metavar: str | None,
    meaning: str,
    *,
    named: str = "",
    **options: Any,
) -> Argument:
    """Return a positional argument, or an option with a value, which is empty if it is not given.

    `options` are further keywords of `add_argument`.
    """
    names = (names,) if isinstance(names, str) else names
    default = {"default": ""} if names[0].startswith("-") else {}
    given = {"metavar": metavar, "help": meaning, **default, **options}
    return Argument(names=names, options=given, named=named)


def switch(names: str | tuple[str, ...], meaning: str, **options: Any) -> Argument:
    """Return an option without a value."""
    names = (names,) if isinstance(names, str) else names
    return Argument(names=names, options={"action": "store_true", "help": meaning, **options})


class Command:
    """One command.

    Attributes:
        name: its words, such as "models fetch".
        function: module in `dtd.ctl.commands` and function, such as "models:fetch"; it gets the
            settings and the arguments by name, and returns the exit code if that is not 0.
        help: a sentence, then perhaps a paragraph.
        examples: lines to type, without the name of the program.
    """

    def __init__(
        self,
        name: str,
        function: str,
        meaning: str,
        *arguments: Argument,
        examples: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.function = function
        self.help = meaning
        self.arguments = arguments
        self.examples = examples


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


def kinds(text: str) -> tuple[str, ...]:
    """Read kinds of events with commas between, as argparse's `type`."""
    from dtd.event_names import INCIDENTS

    wrong = [kind for kind in names(text) if kind not in INCIDENTS]
    if wrong:
        raise argparse.ArgumentTypeError(
            f"{wrong[0]!r} is not a kind of event{_near(wrong[0], INCIDENTS)}"
        )
    return names(text)


def since_s(text: str) -> float:
    """Read "90m" or "2d" before now, a date, a time of day or both, as argparse's `type`.

    Returns:
        The Unix time that is meant.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0.0, time.time() - int(ago[1]) * _UNIT_S[ago[2]])
    try:
        if _CLOCK.fullmatch(text):
            today = dt.datetime.now()  # noqa: DTZ005 - of this host's clock, as it is shown
            at = dt.datetime.combine(today.date(), dt.time.fromisoformat(text))
            return (at if at <= today else at - dt.timedelta(days=1)).timestamp()
        return max(0.0, dt.datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a time: write "90m", "2d", "14:00" or "2026-11-22T14:00"'
        ) from None


def _near(typed: str, known: Iterable[str]) -> str:
    from dtd.rules import did_you_mean  # seldom needed, and slow to load

    return did_you_mean(typed, known)


class _Parser(argparse.ArgumentParser):
    """Reports a wrong line as any other failure of dtdctl."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", remedy=f"{self.prog} --help")


def read_arguments(command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Read the words after a command's name; raises UsageError."""
    parser = _parser(command)
    # The second one reads options after "--", too.
    intermixed = parser.parse_known_intermixed_args
    values, extra = (parser.parse_known_args if "--" in words else intermixed)(words)
    if extra:
        near = _near(extra[0], flags_of(command)) if extra[0].startswith("-") else ""
        parser.error(f"unexpected argument {extra[0]!r}{near}")
    return vars(values)


def command_help(command: Command) -> str:
    """Return a command's help."""
    return _parser(command).format_help()


def _parser(command: Command) -> argparse.ArgumentParser:
    summary, _, more = command.help.partition("\n\n")
    text = "\n\n".join(textwrap.fill(part, _WIDTH) for part in (summary, more) if part)
    parser = _Parser(
        prog=f"{PROGRAM} {command.name}",
        description=text,
        epilog="\n".join(example_lines(command.examples)),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for one in command.arguments:
        parser.add_argument(*one.names, **one.options)
    return parser


def example_lines(examples: Sequence[str]) -> list[str]:
    """Return examples under their heading; nothing if there are none."""
    return ["examples:", *(f"  {PROGRAM} {one}" for one in examples)] if examples else []


def list_help(rows: Iterable[tuple[str, str]], *, width: int = 0) -> list[str]:
    """Return lines that list names with their meaning, in a column of this width or what fits."""
    rows = list(rows)
    width = width or max(len(name) for name, _ in rows) + 4
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
