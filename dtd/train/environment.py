"""The software and hardware of this process, for the record of a job."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import torch

from dtd import __version__

_CPUINFO = Path("/proc/cpuinfo")
_MODEL = "model name"


def environment(name: str) -> dict[str, str]:
    """Return versions and hardware that affect numbers and speed.

    Args:
        name: the device on which the worker trains, as torch names it.
    """
    device = torch.device(name)
    found = {
        "dtd": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "processor": _processor(),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def _processor() -> str:
    """The first processor's name, as the kernel tells it; empty on kinds for which it does not."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(_MODEL))
    return next(named, "")
