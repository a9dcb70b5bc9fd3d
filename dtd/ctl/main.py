"""`dtdctl`: the entry point.

Takes the options that every command has, runs the command (`dtd.ctl.commands` has the table), and
turns every failure into one sentence on stderr and an exit code.  Also help, and completion for
bash.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

from dtd import __version__
from dtd.ctl import output
from dtd.ctl.command_line import (
    HELP_FLAGS,
    PROGRAM,
    command_help,
    flags_of,
    list_help,
    read_arguments,
)
from dtd.ctl.commands import COMMANDS, GROUPS
from dtd.ctl.settings import Settings, make_settings, take_settings
from dtd.errors import DtdError, UsageError
from dtd.streams import fit_streams

COMPLETION_VARIABLE: Final = "_DTDCTL_COMPLETE"
EXIT_BROKEN_PIPE: Final = 1
_BY_NAME: Final = {one.name: one for one in COMMANDS}

_OPTIONS: Final = (
    (
        "--coordinator ADDRESS[,...]",
        "HOST:PORT or unix:/PATH; default: DTD_COORDINATOR, then a coordinator of this host",
    ),
    ("--credential FILE", "default: DTD_CREDENTIAL, then ~/.config/dtd/ctl.credential"),
    ("-o, --output table|json", "form of the output; default: table"),
    ("--version", "show the version"),
    ("--show-completion", 'show the completion for bash: eval "$(dtdctl --show-completion)"'),
    ("-h, --help", "show this help, or that of the command before it"),
)
_EXIT_CODES: Final = (
    "Exit codes: 0 healthy or done, 1 the command failed, 2 usage or invalid job,\n"
    "3 no coordinator, 4 degraded (status) or job failed (wait)."
)
_COMPLETION: Final = """\
_dtdctl() {
    COMPREPLY=($(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD \
_DTDCTL_COMPLETE=complete_bash "$1"))
}
complete -o default -F _dtdctl dtdctl"""


def main() -> NoReturn:
    """Run dtdctl and exit with its code."""
    signal.signal(signal.SIGINT, _interrupted)
    fit_streams()
    if COMPLETION_VARIABLE in os.environ:
        words = os.environ.get("COMP_WORDS", "").split()
        output.print_lines(completions(words, int(os.environ.get("COMP_CWORD", "1"))))
        sys.exit(0)
    try:
        exit_code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output is gone; nothing may be flushed to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        exit_code = EXIT_BROKEN_PIPE
    sys.exit(exit_code)


def _interrupted(_signal: int, _frame: object) -> NoReturn:
    sys.exit(output.EXIT_INTERRUPTED)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are told on stderr."""
    as_json = False
    try:
        values, rest = take_settings(arguments)
        as_json = values.get("output") == "json"
        settings = make_settings(values, rest[0] if rest else "")
        exit_code = _run_command(settings, rest)
        if any(client.renew for client in settings.clients):
            from dtd.ctl.access import renew_if_due  # seldom needed, and slow to load

            renew_if_due(settings)
        return exit_code
    except DtdError as error:
        output.say_error(error, as_json=as_json)
        return error.exit_code


def _run_command(settings: Settings, words: Sequence[str]) -> int:
    """Run one command line, without the options that every command has; return its exit code.

    Raises:
        UsageError: there is no such command, or its arguments are wrong.
        DtdError: the command failed.
    """
    words = list(words)
    if words[:1] == ["sweep"] and words[1:2] and words[1].endswith(".toml"):
        words.insert(1, "begin")
    before = words[: words.index("--")] if "--" in words else words
    for length in (2, 1):
        command = _BY_NAME.get(" ".join(words[:length]))
        if command is None or len(words) < length:
            continue
        if HELP_FLAGS & set(before):
            output.print_document(command_help(command))
            return 0
        module, _, function = command.function.partition(":")
        values = read_arguments(command, words[length:])
        run_it = getattr(importlib.import_module(f"dtd.ctl.{module}"), function)
        exit_code: int | None = run_it(settings, **values)
        return exit_code or 0
    return _run_no_command(words)


def _run_no_command(words: Sequence[str]) -> int:
    """Handle a line that names no command: a group, an option of dtdctl itself, or an error."""
    if words[:1] == ["--version"]:
        output.print_lines([f"dtd {__version__}"])
        return 0
    if words[:1] == ["--show-completion"]:
        output.print_document(f"{_COMPLETION}\n")
        return 0
    group = words[0] if words and words[0] in GROUPS else ""
    rest = words[1:] if group else words
    if not rest or rest[0] in HELP_FLAGS:
        output.print_document(_help(group))
        return 0 if rest else UsageError.exit_code
    from dtd.rules import did_you_mean  # seldom needed, and slow to load

    known = [name.removeprefix(f"{group} ") for name in _names(group)]
    program = f"{PROGRAM} {group}".rstrip()
    raise UsageError(
        f"{program} has no command {rest[0]!r}{did_you_mean(rest[0], known)}",
        remedy=f"{program} --help",
    )


def _names(group: str) -> Iterator[str]:
    """Names of a group's commands; without one those of single commands, and of all groups."""
    for one in COMMANDS:
        first, _, second = one.name.partition(" ")
        if first == group if second else not group:
            yield one.name
    yield from () if group else GROUPS


def _help(group: str) -> str:
    if group:
        head = [f"usage: {PROGRAM} {group} COMMAND [-h] ...", "", GROUPS[group], "", "commands:"]
    else:
        head = [f"usage: {PROGRAM} COMMAND [-h] ...", "", "Query and control a dtd coordinator."]
        head += ["", "commands:"]
    known = {**GROUPS, **{one.name: one.help.partition("\n")[0] for one in COMMANDS}}
    lines = [*head, *list_help((name, known[name]) for name in _names(group))]
    lines += ["", "options, which may stand anywhere on the line:", *list_help(_OPTIONS)]
    return "\n".join([*lines, *(() if group else ("", _EXIT_CODES))]) + "\n"


def completions(words: Sequence[str], position: int) -> list[str]:
    """Return the words that may stand at a position, given those of the line so far."""
    typed = words[position] if position < len(words) else ""
    before = list(words[1:position])
    command = next(
        (_BY_NAME[name] for length in (2, 1) if (name := " ".join(before[:length])) in _BY_NAME),
        None,
    )
    if command is not None:
        known = flags_of(command)
    elif before and before[0] in GROUPS:
        known = [name.partition(" ")[2] for name in _names(before[0])]
    else:
        known = list(_names(""))
    return sorted(word for word in known if word.startswith(typed))


if __name__ == "__main__":
    main()
