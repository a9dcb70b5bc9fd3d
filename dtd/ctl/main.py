"""`dtdctl`: the entry point.

Takes the options that every command has, answers a plain `status` without loading typer (which
alone takes longer than the answer), hands everything else to `app`, and turns every failure into
one sentence on stderr and an exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from dtd.ctl import output
from dtd.ctl.access.renewal import renew_if_due
from dtd.ctl.settings import Settings, make_settings, take_settings
from dtd.errors import DtdError
from dtd.streams import fit_streams

PROGRAM: Final = "dtdctl"
COMPLETION_VARIABLE: Final = "_DTDCTL_COMPLETE"
EXIT_BROKEN_PIPE: Final = 1  # what typer says, too


def main() -> NoReturn:
    """Run dtdctl and exit with its code."""
    signal.signal(signal.SIGINT, _interrupted)
    fit_streams()
    if COMPLETION_VARIABLE in os.environ:
        sys.exit(_run_app(sys.argv[1:], None))
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
        if rest == ["status"]:
            from dtd.ctl.status import show_status

            exit_code = show_status(settings)
        else:
            exit_code = _run_app(rest, settings)
        renew_if_due(settings)
        return exit_code
    except DtdError as error:
        output.say_error(error, as_json=as_json)
        return error.exit_code


def _run_app(arguments: Sequence[str], settings: Settings | None) -> int:
    from dtd.ctl.app import app

    try:
        app(list(arguments), prog_name=PROGRAM, obj=settings)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    main()
