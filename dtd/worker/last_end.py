"""Determines how this worker's previous process ended, from the traces that it left.

A process that dies cannot say why, and its peers only observe silence.  So a worker
leaves traces while it lives, and the next process of the same state directory reads them:

    running.json         that it runs: pid, boot, and the kernel's counts of processes that were
                         killed for lack of memory; taken away when it ends in good order
    fault.txt            where Python's fault handler writes every thread's stack on SIGSEGV,
                         SIGFPE, SIGABRT, SIGBUS and SIGILL
    service-result.txt   systemd's word of how the service ended, written by ExecStopPost= of the
                         unit

What they amount to (`verdict`) is pure.  The worker logs it with the stack, and the coordinator is
told in REGISTER.  Nothing here may keep a worker from starting: a trace that cannot be written or
read is one trace less.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

import structlog

from dtd.shown import escaped

log = structlog.get_logger()

RUNNING_FILE: Final = "running.json"
FAULT_FILE: Final = "fault.txt"
SERVICE_FILE: Final = "service-result.txt"
_STDERR: Final = 2
_LIMIT_BYTES: Final = 64 * 1024
_TOLD_CHARACTERS: Final = 255
_SIGNALS: Final = {
    "Segmentation fault": "SIGSEGV",
    "Floating point exception": "SIGFPE",
    "Floating-point exception": "SIGFPE",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
}
_FATAL: Final = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_TOP_FRAME: Final = re.compile(
    r"^Current thread .*\n(?:  Garbage-collecting\n)?"
    r"  File \"(?P<file>[^\"]*)\", line (?P<line>\d+) in (?P<name>\S+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Surroundings of a process, at its start and when it is looked back at.

    Attributes:
        boot: the kernel's id of this boot; empty if it has none.
        cgroup: the control group, by path and inode, so that one made anew is another.
        cgroup_oom_kills: processes of that group that the kernel has killed for lack of memory.
        host_oom_kills: the same of the whole host, since it booted.
    """

    boot: str = ""
    cgroup: str = ""
    cgroup_oom_kills: int = 0
    host_oom_kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Traces that an earlier process has left.

    Attributes:
        pid: its process id.
        began: when it started.
        fault: output of the fault handler.
        service: systemd's SERVICE_RESULT, EXIT_CODE and EXIT_STATUS; empty if it was no service.
    """

    pid: int
    began: Moment
    fault: str = ""
    service: str = ""


def verdict(traces: Traces, now: Moment) -> str:
    """Describe the end of a process, to follow "its last process": one clause, never empty.

    The strongest evidence speaks: the watchdog, a stack, the service manager, the kernel's counts.
    """
    fault = _FATAL.search(traces.fault)
    result, _, rest = traces.service.partition(" ")
    status = rest.rpartition(" ")[2]
    if result == "watchdog":  # whose SIGABRT leaves a stack, too
        return (
            f"was ended by systemd's watchdog: its event loop did not answer{_place(traces.fault)}"
        )
    if fault is not None:
        return f"ended by {_SIGNALS.get(fault[1], fault[1])}{_place(traces.fault)}"
    if result == "oom-kill":
        return "was killed by the kernel for lack of memory (systemd: oom-kill)"
    if traces.began.boot and now.boot and traces.began.boot != now.boot:
        return "ended when its host went down; the host has restarted since"
    memory = _lack_of_memory(traces.began, now)
    if result in ("signal", "core-dump") and status and not (memory and status == "KILL"):
        return f"ended by SIG{status} (systemd: {result})"
    if memory:
        return f"ended by SIGKILL: {memory}"
    if result == "exit-code":
        return f"ended with exit status {status}"
    return "ended without a message: by SIGKILL, or because a library ended the process"


def _place(fault: str) -> str:
    """Return the place of the thread that the signal hit; empty if unknown."""
    top = _TOP_FRAME.search(fault)
    return f" in {top['name']} ({Path(top['file']).name}:{top['line']})" if top else ""


def _lack_of_memory(began: Moment, now: Moment) -> str:
    same_group = began.cgroup and began.cgroup == now.cgroup
    if same_group and now.cgroup_oom_kills > began.cgroup_oom_kills:
        return "the kernel killed it for lack of memory (oom_kill of its control group)"
    kills = now.host_oom_kills - began.host_oom_kills
    if kills > 0:
        noun = "process" if kills == 1 else "processes"
        return (
            f"the kernel has killed {kills} {noun} of this host for lack of memory since it"
            " started (oom_kill in /proc/vmstat; `journalctl -k` names them)"
        )
    return ""


class LastEnd:
    """The traces in one state directory.

    Args:
        state_dir: this worker's.

    Attributes:
        told: how the process before this one ended; empty if in good order, or if there was none.
    """

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir
        self._fault: TextIO | None = None
        self.told = ""

    def begin(self) -> None:
        """Read the last process's traces, then begin this one's."""
        now = _moment()
        traces = self._read()
        if traces is not None:
            self.told = verdict(traces, now)[:_TOLD_CHARACTERS]
            found = {"how": self.told, "last_pid": traces.pid, "stack": traces.fault}
            log.warning("last_process_ended", **found)
        self._forget()
        record = {"pid": os.getpid(), "began": asdict(now)}
        with contextlib.suppress(OSError):
            (self._directory / RUNNING_FILE).write_text(json.dumps(record), "utf-8")
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

    def _read(self) -> Traces | None:
        """Return the traces that are there; None if the last process ended in good order."""
        try:
            record = json.loads(_text(self._directory / RUNNING_FILE))
            began = Moment(**record["began"])
            pid = int(record["pid"])
        except (ValueError, TypeError, KeyError):  # there is none, or it is not whole
            return None
        return Traces(
            pid=pid,
            began=began,
            fault=escaped(_text(self._directory / FAULT_FILE)),
            service=escaped(_text(self._directory / SERVICE_FILE)).strip(),
        )

    def _forget(self) -> None:
        for name in (RUNNING_FILE, FAULT_FILE, SERVICE_FILE):
            with contextlib.suppress(OSError):
                (self._directory / name).unlink()


def _moment(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Moment:
    group = cgroups / _text(proc / "self/cgroup").rpartition("::/")[2].strip()
    identity = ""
    with contextlib.suppress(OSError):
        identity = f"{group}:{group.stat().st_ino}"
    return Moment(
        boot=_text(proc / "sys/kernel/random/boot_id").strip(),
        cgroup=identity,
        cgroup_oom_kills=_count(group / "memory.events"),
        host_oom_kills=_count(proc / "vmstat"),
    )


def _count(path: Path) -> int:
    """The value of `oom_kill` in a file of names and numbers; 0 where there is none."""
    found = re.search(r"^oom_kill (\d{1,18})$", _text(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _text(path: Path) -> str:
    """The beginning of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
