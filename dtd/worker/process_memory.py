"""How much memory this process holds, and what is left out of the collection of garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# --- how much memory this process holds, from the kernel ---------------------------------------


_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident set size in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


# --- what is imported for good is left out of the collection of garbage ------------------------
#
# Importing torch makes half a million objects that live as long as the process.  Python's collector
# looks at all of them again and again while they are made, for a quarter of the import's processor
# time; and once they are there, each full collection looks at them for 0.3 s, in which it holds the
# interpreter and neither the event loop nor the training thread gets on.


@contextmanager
def made_to_last() -> Iterator[None]:
    """Nothing is collected inside; what is there at the end is never looked at again."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collected:
            gc.enable()
