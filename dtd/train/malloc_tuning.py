"""Memory that one step has freed is kept for the next one.

Every step allocates activations and gradients of the same sizes and frees them.  glibc gives large
blocks back to the kernel, which fills pages with zeros when the next step asks for them again: for
ResNet-18 at 8 rows a rank 11,000 pages and a tenth of the step.  Kept, they cost next to nothing: a
process needs about as much at its peak.  See mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_NEVER: Final = -1
_LARGEST_IN_HEAP_BYTES: Final = 32 << 20
"""The highest threshold that mallopt(3) takes; larger blocks are mapped and given back as ever."""


def keep_freed_memory() -> None:
    """From now on this process gives no heap back before it ends; does nothing without glibc.

    Before other threads begin: they share one heap from then on, since glibc's heaps for threads
    are of 64 MiB and given back whatever it is told.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP_BYTES)
        mallopt(_ARENA_MAX, 1)
