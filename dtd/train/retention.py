"""Which checkpoints stay: the newest few and the best by a metric.

Only published checkpoints are looked at, by name and manifest; whether their bytes are sound is
`dtd.train.checkpoint_format`.  A directory is renamed before it is removed, so what is half
removed does not look like a damaged checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from dtd.errors import CheckpointError
from dtd.train.checkpoint_format import TEMPORARY, list_checkpoints, read_manifest


def retain(directory: Path, *, keep: int, best_metric: str) -> tuple[str, ...]:
    """Remove a job's superfluous checkpoints; returns the names of those that stay, newest first.

    Args:
        directory: the job's directory.
        keep: how many of the newest stay.
        best_metric: the best by this metric stays too; empty for none.
    """
    paths = list_checkpoints(directory.parent, directory.name)
    staying = set(paths[: max(1, keep)])
    best = best_checkpoint(paths, best_metric)
    if best is not None:
        staying.add(best)
    for path in paths:
        if path not in staying:
            doomed = path.with_name(f"{TEMPORARY}{path.name}-old")
            with contextlib.suppress(OSError):  # it stays another time
                path.rename(doomed)
                shutil.rmtree(doomed)
    return tuple(path.name for path in paths if path in staying)


def best_checkpoint(paths: Sequence[Path], metric: str) -> Path | None:
    """The best by a metric, of equal ones the newest; None if none has it.

    Lower is better if the metric's name contains "loss".
    """
    sign = -1.0 if "loss" in metric else 1.0
    best: tuple[float, Path] | None = None
    for path in paths if metric else ():
        try:
            value = read_manifest(path).metrics.get(metric, math.nan)
        except CheckpointError:
            continue
        if not math.isnan(value) and (best is None or sign * value > best[0]):
            best = (sign * value, path)
    return best[1] if best else None
