"""A control group for each host, so that no systemd finds the units of another one in its tree.

A group is a directory of the kernel, and these are named after the process that made them: those
of a process that was killed are removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mounts")
_NAME: Final = re.compile(r"dtd-systemd-([0-9]+)-.+")
_EMPTY_WITHIN_S: Final = 10.0


class ControlGroups:
    """One group in each hierarchy that systemd uses: cgroup2, and its own where there are both.

    Args:
        name: of the host.
    """

    def __init__(self, name: str) -> None:
        self._groups = [root / f"dtd-systemd-{os.getpid()}-{name}" for root in hierarchies()]

    def shell_lines(self) -> str:
        """Make the groups; returns the lines that bring the shell that runs them into them."""
        for group in self._groups:
            _remove_stale(group.parent)
            group.mkdir(exist_ok=True)
        return "".join(f"echo $$ > {group}/cgroup.procs\n" for group in self._groups)

    def close(self) -> None:
        """Remove the groups, once the last process in them has ended."""
        deadline_s = time.monotonic() + _EMPTY_WITHIN_S
        for group in self._groups:
            while not _remove(group) and time.monotonic() < deadline_s:
                time.sleep(0.05)


def hierarchies() -> list[Path]:
    """Where the control groups that systemd uses are mounted; empty: nowhere."""
    found = []
    for line in _MOUNTS.read_text("utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(place))
    return found


def _remove(group: Path) -> bool:
    """Whether the group and all below it are gone."""
    for directory, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
    return not group.exists()


def _remove_stale(root: Path) -> None:
    for group in root.glob("dtd-systemd-*"):
        match = _NAME.fullmatch(group.name)
        if match and not Path("/proc", match[1]).exists():
            _remove(group)
