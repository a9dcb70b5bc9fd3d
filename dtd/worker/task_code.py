"""Where this process finds the code of a task, and which code that is.

What was shipped comes first, then the current directory, then what is installed.  Workers say what
they have found, so that different code on two of them is noticed before they train together.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from dtd.packages.source import find_source, top_level_name
from dtd.packages.tree import source_digest


def look_first_in(place: Path | None) -> None:
    """Have imports look in the directory of a shipped package before anywhere else."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if place is not None:
        sys.path.insert(0, str(place))
    importlib.invalidate_caches()


def task_digest(reference: str, place: Path | None) -> str:
    """Hash of the source of a task's package; empty for a built-in task, or without source.

    Args:
        reference: as the job names the task.
        place: where its package was shipped to; None: it is what an import finds.

    Raises:
        TaskError: a file of it cannot be read.
    """
    name = top_level_name(reference)
    source = find_source(name, sys.path if place is None else [place]) if name else None
    return source_digest(source) if source is not None else ""
