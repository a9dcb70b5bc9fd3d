"""`dtdctl`: the entry point.

Takes the options that every command has, runs the command (`dtd.ctl.command_table` has the table),
and turns every failure into one sentence on stderr and an exit code.  Also help.
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
    example_lines,
    list_help,
    read_arguments,
)
from dtd.ctl.command_table import COMMANDS, EXAMPLES, GROUPS, TOPICS
from dtd.ctl.settings import Settings, make_settings, take_settings
from dtd.errors import DtdError, UsageError
from dtd.host.streams import fit_streams

EXIT_BROKEN_PIPE: Final = 1
_BY_NAME: Final = {one.name: one for one in COMMANDS}

_OPTIONS: Final = (
    (
        "--coordinator ADDRESS[,...]",
        "HOST:PORT or unix:/PATH; default: DTD_COORDINATOR, then a coordinator of this host",
    ),
    ("--credential FILE", "default: DTD_CREDENTIAL, then ~/.config/dtd/ctl.credential"),
    ("-o, --format FORM", "table, wide (all columns) or json; default: table"),
    ("--version", "show the version"),
    (
        "--show-completion SHELL",
        'bash or zsh; type: eval "$(dtdctl --show-completion bash)"',
    ),
    ("-h, --help", "show this help, or that of the command before it"),
)
_EXIT_CODES: Final = (
    "Exit codes: 0 healthy or done, 1 the command failed, 2 usage or invalid job,\n"
    "3 no coordinator, 4 degraded (status) or job failed (wait)."
)


def main() -> NoReturn:
    """Run dtdctl and exit with its code."""
    signal.signal(signal.SIGINT, _interrupted)
    fit_streams()
    if "_DTDCTL_COMPLETE" in os.environ:
        from dtd.ctl.completion import VARIABLE, completions

        seconds = {group: [*_names(group)] for group in GROUPS}
        output.print_lines(completions(os.environ[VARIABLE], _BY_NAME, seconds))
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
        as_json = values.get("form") == "json"
        settings = make_settings(values, rest[0] if rest else "")
        exit_code = _run_command(settings, rest)
        if any(client.renew for client in settings.clients):
            from dtd.ctl.commands.access import renew_if_due  # seldom needed, and slow to load

            renew_if_due(settings)
        return exit_code
    except DtdError as error:
        output.say_error(error, as_json=as_json)
        return error.exit_code


def _run_command(settings: Settings, words: Sequence[str]) -> int:
    """Run one command line, without the options that every command has; return its exit code."""
    words = list(words)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
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
        run_it = getattr(importlib.import_module(f"dtd.ctl.commands.{module}"), function)
        exit_code: int | None = run_it(settings, **values)
        return exit_code or 0
    return _run_no_command(words)


def _run_no_command(words: Sequence[str]) -> int:
    """Handle a line that names no command: a group, an option of dtdctl itself, or an error."""
    if words[:1] == ["--version"]:
        output.print_lines([f"dtd {__version__}"])
        return 0
    if words[:1] == ["--show-completion"]:
        from dtd.ctl.completion import SCRIPTS

        shell = words[1] if words[1:] else os.environ.get("SHELL", "").rpartition("/")[2]
        output.print_document(SCRIPTS.get(shell, SCRIPTS["bash"]))
        return 0
    group = words[0] if words and words[0] in GROUPS else ""
    rest = words[1:] if group else words
    if not rest or rest[0] in HELP_FLAGS:
        output.print_document(_help(group))
        return 0 if rest else UsageError.exit_code
    from dtd.rules import did_you_mean  # seldom needed, and slow to load

    known = list(_names(group) if group else (name for names in TOPICS.values() for name in names))
    program = f"{PROGRAM} {group}".rstrip()
    raise UsageError(
        f"{program} has no command {rest[0]!r}{did_you_mean(rest[0], known)}",
        remedy=f"{program} --help",
    )


def _names(group: str) -> Iterator[str]:
    """Second words of a group's commands."""
    for one in COMMANDS:
        first, _, second = one.name.partition(" ")
        if second and first == group:
            yield second


def _help(group: str) -> str:
    known = {**GROUPS, **{one.name: one.help.partition("\n")[0] for one in COMMANDS}}
    width = max(map(len, known)) + 4
    lines = [f"usage: {' '.join([PROGRAM, *filter(None, [group])])} COMMAND [-h] ..."]
    if group:
        rows = [(f"{group} {name}", known[f"{group} {name}"]) for name in _names(group)]
        lines += ["", GROUPS[group], "", "commands:", *list_help(rows, width=width)]
    else:
        lines += ["", "Train on a cluster, and look after it."]
        for topic, names in TOPICS.items():
            lines += ["", f"{topic}:", *list_help(((n, known[n]) for n in names), width=15)]
        lines += ["", *example_lines(EXAMPLES)]
    lines += ["", "options, anywhere on the line:", *list_help(_OPTIONS)]
    return "\n".join([*lines, *(() if group else ("", _EXIT_CODES))]) + "\n"


if __name__ == "__main__":
    main()
