"""Evidence of this worker's condition: a stuck thread, the last process's end, status, traffic.

Linux only, as all of dtd.  What cannot be read counts as nothing.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, TextIO

import structlog

import dtd
from dtd.cluster.progress import Evidence
from dtd.exchange.endpoint import RingEndpoint
from dtd.net.link import NO_TRAFFIC, Traffic
from dtd.own_loop.turns import turn_of
from dtd.shown import escaped
from dtd.wire import messages as m

log = structlog.get_logger()

MOST_TASKS: Final = 256
"""Most threads and child processes of a close look, which is to take a few milliseconds."""

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_STATES: Final = {"D": "a disk or a file server", "R": "a processor"}
"""States of a thread in /proc that show activity outside of it."""


def glance() -> Evidence:
    """Read clocks only, in microseconds, and without giving up the interpreter's lock.

    Called on the event loop, whose own time does not count.  A thread that computes in Python
    would not give the lock back for long.
    """
    now_s = time.monotonic()
    return Evidence(at_s=now_s, cpu_s=time.process_time() - time.thread_time())


def look_closely(trainer: threading.Thread, glanced: Evidence) -> Evidence:
    """Add to the glance of a moment ago what /proc shows."""
    own = _stat("/proc/self/stat")
    thread = _stat(f"/proc/self/task/{trainer.native_id}/stat")
    children = [_stat(f"/proc/{pid}/stat") for pid in _descendants()]
    return Evidence(
        at_s=glanced.at_s,
        cpu_s=glanced.cpu_s,
        children_cpu_s=own.waited_for_s + sum(one.cpu_s + one.waited_for_s for one in children),
        waits_for=_STATES.get(thread.state, "")
        or next(filter(None, map(_wait_of_child, children)), ""),
    )


class _Stat(NamedTuple):
    """The needed fields of /proc/PID/stat."""

    pid: int = 0
    state: str = ""
    cpu_s: float = 0.0
    waited_for_s: float = 0.0


def _stat(path: str) -> _Stat:
    content = _read(path)
    fields = content.rpartition(")")[2].split()  # a name may hold spaces and brackets
    if len(fields) < 15:
        return _Stat()
    return _Stat(
        pid=int(content.split(" ", 1)[0]),
        state=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) * _TICK_S,
        waited_for_s=(int(fields[13]) + int(fields[14])) * _TICK_S,
    )


def _wait_of_child(child: _Stat) -> str:
    return f"{_STATES['D']} (process {child.pid})" if child.state == "D" else ""


def _descendants() -> Iterator[int]:
    """Child processes, and theirs, whichever thread has started them."""
    with contextlib.suppress(OSError):
        tasks = [str(task) for task in Path("/proc/self/task").iterdir()]
        wanted = deque(tasks[:MOST_TASKS])
        found = 0
        while wanted and found < MOST_TASKS:
            for pid in _read(f"{wanted.popleft()}/children").split():
                found += 1
                wanted.append(f"/proc/{pid}/task/{pid}")
                yield int(pid)


def _read(path: str) -> str:
    """A file of /proc; empty when it is gone or not for us."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - many a second
            return (file.read(16384) or b"").decode("ascii", "replace")
    except OSError:
        return ""


# --- the line of code that a thread executes -----------------------------------------------------


MAX_WHERE_CHARACTERS: Final = 200
TELLING_S: Final = 1.0
"""A stall this long is worth saying where."""

_LIBRARIES: Final = ("site-packages", "dist-packages", "torch")
_DTD: Final = Path(dtd.__file__).parent
_TASKS: Final = _DTD / "tasks"  # count as the user's own
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


def where_stalled(thread_ident: int | None, stalled_s: float) -> str:
    """The line that a stalled thread, or the loop it waits for, executes: the user's innermost.

    Args:
        thread_ident: None when there is no thread.
        stalled_s: how long it has made no progress.

    Returns:
        Like `task.py:4 in loss`, at most 200 characters; empty while the stall is short, and when
        the thread is over.
    """
    frame = sys._current_frames().get(turn_of(thread_ident or 0))  # noqa: SLF001 - its documented name
    if frame is None or stalled_s <= TELLING_S:
        return ""
    innermost = frame
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    return _in_words(frame or innermost)[:MAX_WHERE_CHARACTERS]


def _is_library(frame: FrameType) -> bool:
    file = Path(frame.f_code.co_filename)
    if not file.is_absolute():
        return frame.f_code.co_filename.startswith("<")
    if file.is_relative_to(_TASKS):
        return False
    installed = any(name in file.parts for name in _LIBRARIES)
    return installed or file.is_relative_to(_DTD) or file.is_relative_to(_STANDARD)


def _in_words(frame: FrameType) -> str:
    code = frame.f_code
    return f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"


# --- how the previous process of this worker ended -----------------------------------------------


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
    """Describe the end of a process in one clause, never empty.

    Args:
        fault: output of its fault handler.
        service: systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS; empty if it was no service.
    """
    fatal, top = _FATAL.search(fault), _TOP_FRAME.search(fault)
    place = f" in {top['name']} ({Path(top['file']).name}:{top['line']})" if top else ""
    result, _, rest = service.partition(" ")
    status = rest.rpartition(" ")[2]
    if result and result != "exit-code":
        return f"ended by SIG{status} (systemd: {result}){place}"
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


# --- status, in the one line that `systemctl status` shows ---------------------------------------


def status_line(
    beat: m.Heartbeat, assign: m.Assign | None, *, coordinator: str, diagnostic: str = ""
) -> str:
    """Job, step, loss and peers, or the reason for waiting.

    Args:
        beat: the present heartbeat.
        assign: the newest generation of this process.
        coordinator: its address while it cannot be reached, else empty.
        diagnostic: the trouble and its remedy; empty when there is none.
    """
    words = [_doing(beat), *_peers(beat, assign)]
    if coordinator and not diagnostic:
        words.append(f"connecting to the coordinator at {coordinator}")
    line = ", ".join(words)
    return f"{line}; {diagnostic}" if diagnostic else line


def _doing(beat: m.Heartbeat) -> str:
    if not beat.job:
        return beat.waiting
    if beat.waiting:
        return f"job {beat.job}: {beat.waiting}"
    return f"job {beat.job}: step {beat.step}, loss {beat.loss:.4g}"


def _peers(beat: m.Heartbeat, assign: m.Assign | None) -> list[str]:
    if assign is None or beat.waiting:
        return []
    names = [member.name for member in assign.roster]
    if len(names) == 1:
        return ["alone"]
    before, after = names[assign.rank - 1], names[(assign.rank + 1) % len(names)]
    return [f"rank {assign.rank} of {len(names)} between {before} and {after}"]


# --- traffic of its rings, one after the other ---------------------------------------------------


class TrafficMeter:
    """Adds up the traffic of rings; belongs to the event loop."""

    def __init__(self) -> None:
        self._ring: RingEndpoint | None = None
        self._before = NO_TRAFFIC

    def heartbeat_fields(self, ring: RingEndpoint | None) -> dict[str, Any]:
        """Return a heartbeat's fields, since the process started; `ring` is the present one."""
        if ring is not self._ring:
            self._before, self._ring = self._total(), ring
        total = self._total()
        return {
            "sent_bytes": total.sent_bytes,
            "received_bytes": total.received_bytes,
            "rtt_s": total.rtt_s,
        }

    def _total(self) -> Traffic:
        now = NO_TRAFFIC if self._ring is None else self._ring.traffic()
        return Traffic(
            sent_bytes=self._before.sent_bytes + now.sent_bytes,
            received_bytes=self._before.received_bytes + now.received_bytes,
            rtt_s=now.rtt_s,
        )
