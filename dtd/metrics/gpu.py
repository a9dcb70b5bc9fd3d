"""How busy the GPU is and what this process holds of it; asked of torch where torch is in use.

torch is never imported here: a process that has not imported it holds nothing of a GPU.  Asking the
driver can take milliseconds, so this does not belong on the event loop.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """What one process sees of its GPU.

    Attributes:
        use: share of the last while in which the GPU worked, 0 to 1; negative when unknown.
        memory_bytes: what torch holds for this process.
    """

    use: float = -1.0
    memory_bytes: int = 0


NO_GPU = GpuFigures()


def gpu_figures(device: str) -> GpuFigures:
    """The figures of a device.

    Args:
        device: "cpu" or "cuda:N".
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    initialized = getattr(cuda, "is_initialized", None)  # absent while torch is being imported
    if not device.startswith("cuda:") or initialized is None or not initialized():
        return NO_GPU
    index = int(device.partition(":")[2])
    return GpuFigures(use=_use(cuda, index), memory_bytes=int(cuda.memory_reserved(index)))


def _use(cuda: Any, index: int) -> float:
    try:
        return float(cuda.utilization(index)) / 100
    except Exception:  # noqa: BLE001 - the library may be missing, the driver may refuse
        return -1.0
