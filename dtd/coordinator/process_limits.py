"""Limits of this process: open files, and returning freed memory to the system."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

# --- how many files this process may have open: as many as the system lets it, in good measure ---


MOST_FILES: Final = 65536
"""More are not needed, and programs that close all that might be open take their time."""


def raise_file_limit() -> None:
    """Take what the system allows: the usual limit of 1024 is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allowed_files() -> int:
    """Return the most files that this process may have open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft


# --- memory that is freed goes back to the system ----------------------------------------------
#
# Each TLS connection has a buffer of 256 KiB, and answers are as large.  Once the first such block
# was freed, glibc keeps blocks of that size in its heap, between small ones that live longer:
# callers who came and went by the hundred left the coordinator tens of MiB larger.  Thresholds that
# are set stay as they are.  See mallopt(3).


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_IN_HEAP_BYTES: Final = 128 * 1024
"""The initial threshold of glibc; larger blocks are mapped each by itself."""


def give_back_freed_memory() -> None:
    """Have freed large blocks returned to the system from now on; only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _IN_HEAP_BYTES)
        mallopt(_TRIM_THRESHOLD, _IN_HEAP_BYTES)
