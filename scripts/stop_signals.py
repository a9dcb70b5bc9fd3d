"""Asked to stop, a script unwinds once, so that its daemons are stopped, and undisturbed."""

from __future__ import annotations

import signal
import sys
from typing import Final, NoReturn

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def exit_when_asked() -> None:
    """From now on the first stop signal raises SystemExit(128 + signal) in the main thread."""
    for number in _STOP_SIGNALS:
        signal.signal(number, _exit)


def ignore() -> None:
    """From now on stop signals do nothing: what is being cleaned up is cleaned up."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _exit(number: int, _frame: object) -> NoReturn:
    ignore()
    sys.exit(128 + number)
