"""Memory that is freed goes back to the system.

Each TLS connection has a buffer of 256 KiB, and answers are as large.  Once the first such block
was freed, glibc keeps blocks of that size in its heap, between small ones that live longer: callers
who came and went by the hundred left the coordinator tens of MiB larger.  Thresholds that are set
stay as they are.  See mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_IN_HEAP_BYTES: Final = 128 * 1024
"""What glibc begins with; larger blocks are mapped each by itself."""


def give_back_freed_memory() -> None:
    """From now on large blocks are given back when they are freed; does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _IN_HEAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _IN_HEAP_BYTES)
