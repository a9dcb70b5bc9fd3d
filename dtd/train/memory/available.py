"""The memory that this process can still take: of its GPU, of the host, of its control groups.

Control groups (cgroups(7)) limit a service or container below the memory of its host.  What a group
has in use counts, except what the kernel gives back before it ends a process: pages of files, also
those in active use, and its own caches.  Both hierarchies are read, the unified one and version 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import torch

from dtd.doctor.memory import Room

_ROOT: Final = Path("/")
_UNLIMITED_BYTES: Final = 1 << 60
"""Numbers of this size mean "unlimited" in version 1."""
_UNIFIED: Final = ("memory.max", "memory.current", "")
_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_RECLAIMABLE: Final = ("inactive_file", "active_file", "slab_reclaimable")
"""Memory that the kernel can give back, by field; shared memory is in none of them."""


def available_memory(device: torch.device, root: Path = _ROOT) -> Room:
    """Return what can still be allocated, and what limits it."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Room(bytes=free + cached, limit=f"free memory of {device}")
    rooms = [Room(bytes=_host_bytes(root), limit="available memory of the host"), *_groups(root)]
    return min(rooms, key=lambda room: room.bytes)


def _host_bytes(root: Path) -> int:
    """Free memory of the host, with the memory that the kernel can give back."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _groups(root: Path) -> Iterator[Room]:
    """Yield the free memory of each group that contains this process and has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:  # a kernel without control groups
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            mount, files = root / "sys/fs/cgroup", _UNIFIED
        elif "memory" in controllers.split(","):
            mount, files = root / "sys/fs/cgroup/memory", _VERSION_1
        else:
            continue
        own = PurePosixPath(path)
        for group in (own, *own.parents):
            room = _left(mount / str(group).lstrip("/"), files, str(group))
            if room is not None:
                yield room


def _left(directory: Path, files: tuple[str, str, str], group: str) -> Room | None:
    """Return the free memory of one group; None without a limit, or where it cannot be seen."""
    limit_name, usage_name, prefix = files
    try:
        limit_text = (directory / limit_name).read_text().strip()
        used_bytes = int((directory / usage_name).read_text())
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except OSError:  # a container does not see the groups around it
        return None
    if limit_text == "max" or int(limit_text) >= _UNLIMITED_BYTES:
        return None
    reclaimable_bytes = sum(int(stat.get(prefix + name, 0)) for name in _RECLAIMABLE)
    left = int(limit_text) - used_bytes + reclaimable_bytes
    return Room(bytes=max(0, left), limit=f"memory limit of the control group {group}")
