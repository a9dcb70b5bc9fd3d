"""Commands to misbehave, from a chaos run to the task that its workers train.

A file named after a process tells it what to do at its next loss.  A process that
gives commands does not import the task, and so no torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HOLD_GIL: Final = "gil"
GET_STUCK: Final = "stuck"
IMPORTS: Final = "imports"
REFERENCE: Final = "scripts.chaosrun.faulty_task:FaultyTask"


def command(directory: Path, what: str, pid: int, argument: float = 0.0) -> None:
    """Tell a process to misbehave at its next loss; the file appears whole."""
    written = directory / f".{what}-{pid}"
    written.write_text(str(argument))
    written.rename(directory / f"{what}-{pid}")


def imports(directory: Path) -> list[tuple[int, float]]:
    """When each process had imported everything, as (process id, time)."""
    try:
        lines = (directory / IMPORTS).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(int(pid), float(at_s)) for pid, at_s in (line.split() for line in lines)]
