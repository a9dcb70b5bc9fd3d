"""What was measured on: enough to judge the figures by, and nothing that names the machine."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

from dtd import __version__

CONGESTION_FILE: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_PACKAGES: Final = ("torch", "numpy", "uvloop", "xxhash", "cryptography")


def machine() -> dict[str, str | int]:
    """Processor, memory, kernel and versions, and how busy it was."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "kernel": ".".join(platform.release().split(".")[:2]).split("-")[0],
        "python": platform.python_version(),
        "dtd": __version__,
        **{package: version(package) for package in _PACKAGES},
        "congestion_control": congestion_control(),
        "load_before": f"{os.getloadavg()[0]:.1f}",
    }


def congestion_control() -> str:
    """What TCP connections use that are opened here and now."""
    try:
        return CONGESTION_FILE.read_text().strip()
    except OSError:
        return "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
