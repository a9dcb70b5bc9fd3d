"""Control groups that limit the memory of daemons, one for each: cgroups(7), either version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_VERSION_1: Final = Path("/sys/fs/cgroup/memory")
_UNIFIED: Final = Path("/sys/fs/cgroup")


def _root() -> Path:
    """Return the parent of groups: this process's own one in version 1, or the unified root."""
    return _VERSION_1 if _VERSION_1.is_dir() else _UNIFIED


def may_limit() -> bool:
    """Whether this process may make groups with a limit."""
    probe = _root() / f"dtd-{os.getpid()}-probe"
    try:
        probe.mkdir()
    except OSError:
        return False
    limited = any((probe / name).exists() for name in ("memory.limit_in_bytes", "memory.max"))
    probe.rmdir()
    return limited


class MemoryGroups:
    """A group with a limit for each name.

    Args:
        limits: bytes, by name.

    Raises:
        OSError: this process may not make groups; see `may_limit`.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._groups: dict[str, Path] = {}
        for name, limit_bytes in limits.items():
            group = _root() / f"dtd-{os.getpid()}-{name}"
            group.mkdir()
            self._groups[name] = group
            for file in ("memory.limit_in_bytes", "memory.max"):
                if (group / file).exists():
                    (group / file).write_text(str(limit_bytes))

    def join(self, name: str, pid: int) -> None:
        """Put a process into a group; its earlier memory is not counted there."""
        (self._groups[name] / "cgroup.procs").write_text(str(pid))

    def peak_bytes(self, name: str) -> int:
        """The most memory that a group has had, with pages of files that it could give back."""
        group = self._groups[name]
        for file in ("memory.max_usage_in_bytes", "memory.peak"):
            if (group / file).exists():
                return int((group / file).read_text())
        raise FileNotFoundError(group / "memory.peak")

    def killed(self, name: str) -> int:
        """Return the number of a group's processes that the kernel has killed when it was full."""
        for file in ("memory.oom_control", "memory.events"):
            path = self._groups[name] / file
            if path.exists():
                counted = dict(line.split() for line in path.read_text().splitlines())
                return int(counted["oom_kill"])
        raise FileNotFoundError(self._groups[name] / "memory.events")

    def close(self) -> None:
        """Remove the groups; their processes have ended."""
        for group in self._groups.values():
            with contextlib.suppress(FileNotFoundError):
                group.rmdir()
        self._groups = {}
