"""How much memory this process holds, from the kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Resident set size in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
