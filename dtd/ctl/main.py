"""`dtdctl`: the entry point.

Takes the options that every command has, runs the command, and turns every failure into one
sentence on stderr and an exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from dtd.ctl import output
from dtd.ctl.commands import completions, run_command
from dtd.ctl.renewal import renew_if_due
from dtd.ctl.settings import make_settings, take_settings
from dtd.errors import DtdError
from dtd.streams import fit_streams

COMPLETION_VARIABLE: Final = "_DTDCTL_COMPLETE"
EXIT_BROKEN_PIPE: Final = 1


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
        exit_code = run_command(settings, rest)
        renew_if_due(settings)
        return exit_code
    except DtdError as error:
        output.say_error(error, as_json=as_json)
        return error.exit_code


if __name__ == "__main__":
    main()
