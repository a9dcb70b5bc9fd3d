"""The memory of this process: how much it has, and when glibc gives back what it has freed.

A worker keeps it.  Every step allocates and frees activations and gradients of the same sizes.
glibc returns large blocks to the kernel, which zeroes the pages when the next step allocates them
again: for ResNet-18 at 8 rows per rank these are 11,000 pages and a tenth of the step time.
Keeping them costs almost nothing, since the process needs about as much at its peak anyway.  See
mallopt(3).

What is needed once, such as a whole model before it is divided, must not stay: large blocks that
are allocated inside `mapped_blocks` leave no holes in the heap, and go back as soon as they are
freed.

The coordinator gives it back.  Each TLS connection has a buffer of 256 KiB, and answers are as
large.  Once the first such block was freed, glibc keeps blocks of that size in its heap, between
small ones that live longer: callers who came and went by the hundred left the coordinator tens of
MiB larger.  Thresholds that are set stay as they are.

Without glibc nothing here has an effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

_NEVER: Final = -1
LARGEST_IN_HEAP_BYTES: Final = 32 << 20
"""The highest threshold that mallopt(3) accepts; larger blocks are still mapped and returned."""
_LARGE_BYTES: Final = 128 << 10
"""glibc's own threshold at first."""

_keeps = [False]
"""Whether this process keeps freed memory."""


_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """The memory that this process has now."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


def keep_freed_memory() -> None:
    """Keep this process from returning heap memory until it ends.

    Must be called before other threads start.  From then on they share one heap, because glibc's
    heaps for threads have 64 MiB and are returned regardless of the settings.
    """
    if _set(_TRIM_THRESHOLD, _NEVER):
        _set(_MMAP_THRESHOLD, LARGEST_IN_HEAP_BYTES)
        _set(_ARENA_MAX, 1)
        _keeps[0] = True


def give_back_freed_memory() -> None:
    """Return freed large blocks from now on, at once."""
    _set(_MMAP_THRESHOLD, _LARGE_BYTES)
    _set(_TRIM_THRESHOLD, _LARGE_BYTES)


def trim_freed_memory() -> None:
    """Return free memory to the kernel, once.

    For a moment after which this process needs less than before: a model was built beside another
    one, or parts of a state have gone to other ranks.  See malloc_trim(3).
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@contextlib.contextmanager
def mapped_blocks() -> Iterator[None]:
    """Map large blocks by themselves inside, as if nothing were kept; not to be nested.

    For what lives long, or is large and needed only now.  Does nothing in a process that does not
    keep what it frees, because glibc does this anyway there.
    """
    if not _keeps[0]:
        yield
        return
    _set(_MMAP_THRESHOLD, _LARGE_BYTES)
    try:
        yield
    finally:
        _set(_MMAP_THRESHOLD, LARGEST_IN_HEAP_BYTES)


def _set(parameter: int, value: int) -> bool:
    """Set a parameter of mallopt(3); returns whether there is one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
