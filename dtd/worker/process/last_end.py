"""How the last process of this worker ended, by the traces that it has left."""

from __future__ import annotations

import contextlib
import faulthandler
import re
import signal
from pathlib import Path
from typing import Final, TextIO

import structlog

from dtd.text.shown import escaped

log = structlog.get_logger()

RUNNING_FILE: Final = "running"
FAULT_FILE: Final = "fault.txt"
SERVICE_FILE: Final = "service-result.txt"
_STDERR: Final = 2
_LIMIT_BYTES: Final = 64 * 1024
_TOLD_CHARACTERS: Final = 255
_SIGNALS: Final = {signal.strsignal(one): one.name for one in signal.Signals}
_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_TOP_FRAME: Final = re.compile(
    r"^Current thread .*\n(?:  Garbage-collecting\n)?"
    r"  File \"(?P<file>[^\"]*)\", line (?P<line>\d+) in (?P<name>\S+)",
    re.MULTILINE,
)


class LastEnd:
    """The traces of processes in one state directory, by which the next one tells their ends.

    A process that dies cannot say why, and its peers only observe silence.  So it leaves traces:

        running              while it runs; taken away when it ends in good order
        fault.txt            the stacks that Python's fault handler writes on SIGSEGV and the like
        service-result.txt   systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS, by ExecStopPost=

    The next process logs them, and the coordinator is told in REGISTER.  Nothing here may keep a
    worker from starting: a trace that cannot be written or read is one trace less.

    Attributes:
        told: how the process before this one ended, to follow "its last process"; empty if in good
            order, or if there was none.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir
        self._fault: TextIO | None = None
        self.told = ""

    def begin(self) -> None:
        """Read the last process's traces, then begin this one's."""
        if (self._directory / RUNNING_FILE).exists():
            fault = escaped(_text(self._directory / FAULT_FILE))
            service = escaped(_text(self._directory / SERVICE_FILE)).strip()
            self.told = how_it_ended(fault, service)[:_TOLD_CHARACTERS]
            log.warning("last_process_ended", how=self.told, stack=fault)
        self._forget()
        with contextlib.suppress(OSError):
            (self._directory / RUNNING_FILE).touch()
            self._fault = (self._directory / FAULT_FILE).open("w", encoding="utf-8")
            faulthandler.enable(self._fault)

    def failed(self, error: BaseException) -> None:
        """This process ends with an exception that nobody expected."""
        if self._fault is not None:
            with contextlib.suppress(OSError):
                self._fault.write(f"Fatal Python error: {type(error).__name__}: {error}\n")
                self._fault.flush()

    def end(self) -> None:
        """This process ends in good order, or another program takes its place."""
        if self._fault is not None:
            # What follows is nobody's to look back at.  By number: sys.stderr may be a job's log.
            faulthandler.enable(_STDERR)
            self._fault.close()
            self._fault = None
        self._forget()

    def _forget(self) -> None:
        for name in (RUNNING_FILE, FAULT_FILE, SERVICE_FILE):
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()


def how_it_ended(fault: str, service: str) -> str:
    """Describe the end of a process in one clause, never empty."""
    fatal, top = _FATAL.search(fault), _TOP_FRAME.search(fault)
    place = f" in {top['name']} ({Path(top['file']).name}:{top['line']})" if top else ""
    result, _, rest = service.partition(" ")
    status = rest.rpartition(" ")[2]
    if result and result != "exit-code":
        # The handler reads stacks of threads that run on, so writing them may end by a second one.
        first = _SIGNALS.get(fatal[1]) if fatal is not None else None
        return f"ended by {first or f'SIG{status}'} (systemd: {result}){place}"
    if fatal is not None:
        return f"ended by {_SIGNALS.get(fatal[1], fatal[1])}{place}"
    if result:
        return f"ended with exit status {status}"
    return (
        "ended without a message: by SIGKILL, as for lack of memory (`journalctl -k`), or because a"
        " library ended it"
    )


def _text(path: Path) -> str:
    """The beginning of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
