"""How many files this process may have open: as many as the system lets it, in good measure."""

from __future__ import annotations

import resource
from typing import Final

MOST_FILES: Final = 65536
"""More are not needed, and programs that close all that might be open take their time."""


def raise_file_limit() -> None:
    """Take what the system allows: the usual limit of 1024 is for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allowed_files() -> int:
    """How many files this process may have open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else soft
