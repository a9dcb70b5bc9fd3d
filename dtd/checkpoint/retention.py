"""Retention: which of a job's checkpoints a worker keeps, and the removal of the others.

The newest are kept by number, age and space, and the best by a metric.  A job that falls back to an
older state begins a branch: newer checkpoints of before are on no way to anything that is trained
now, and nobody can make them again, so they stay, for an operator to delete, and count for none of
the rules.  A directory is renamed before it is removed, so what is half removed does not look like
a damaged checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dtd.checkpoint.format import (
    MANIFEST_FILE,
    TEMPORARY,
    list_checkpoints,
    parse_name,
    read_manifest,
)
from dtd.cluster.generation.branches import Branch, is_left
from dtd.errors import CheckpointError
from dtd.job import JobSpec
from dtd.job.tables import lower_is_better

_DAY_S = 86400.0
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules by which a worker keeps a job's checkpoints; the newest and the best always stay.

    Attributes:
        best_mode: "min", "max", or empty for the rule by the metric's name.
        keep_days: those not older than this; 0 for any age.
        keep_bytes: the newest in so much room; 0 for any.
    """

    keep: int
    best_metric: str = ""
    best_mode: str = ""
    keep_days: float = 0.0
    keep_bytes: int = 0


def rules_of(spec: JobSpec) -> Rules:
    """A job's rules."""
    table = spec.checkpoint
    return Rules(
        keep=table.keep,
        best_metric=table.best_metric,
        best_mode=table.best_mode,
        keep_days=table.keep_days,
        keep_bytes=int(table.keep_gib * _GIB),
    )


def retain(
    directory: Path, rules: Rules, *, now_unix_s: float, branches: Sequence[Branch] = ()
) -> tuple[str, ...]:
    """Remove a job's superfluous checkpoints; return the names of the others, newest first."""
    known = list_checkpoints(directory.parent, directory.name)
    left = {path for path in known if is_left(parse_name(path.name) or (0, 0), branches)}
    paths = [path for path in known if path not in left]
    best = best_checkpoint(paths, rules.best_metric, rules.best_mode)
    always = [*paths[:1], *([best] if best is not None else [])]
    staying = {*always, *_young(paths[: max(1, rules.keep)], rules, now_unix_s)}
    staying -= _too_much(sorted(staying - {*always}, key=paths.index), always, rules)
    for path in paths:
        if path not in staying:
            doomed = path.with_name(f"{TEMPORARY}{path.name}-old")
            with contextlib.suppress(OSError):  # it stays another time
                path.rename(doomed)
                shutil.rmtree(doomed)
    return tuple(path.name for path in known if path in staying | left)


def _young(paths: Sequence[Path], rules: Rules, now_unix_s: float) -> list[Path]:
    """Those that are not too old."""
    if not rules.keep_days:
        return [*paths]
    oldest_s = now_unix_s - rules.keep_days * _DAY_S
    return [path for path in paths if _written_s(path, now_unix_s) >= oldest_s]


def _too_much(paths: Sequence[Path], always: Sequence[Path], rules: Rules) -> set[Path]:
    """Those for which there is no room beside what always stays and newer ones, newest first."""
    if not rules.keep_bytes:
        return set()
    taken_bytes = sum(map(_size_bytes, {*always}))
    for number, path in enumerate(paths):
        taken_bytes += _size_bytes(path)
        if taken_bytes > rules.keep_bytes:
            return {*paths[number:]}
    return set()


def _written_s(path: Path, now_unix_s: float) -> float:
    """When it was written; what cannot be told counts as now, so nothing is removed for it."""
    try:
        return (path / MANIFEST_FILE).stat().st_mtime
    except OSError:
        return now_unix_s


def _size_bytes(path: Path) -> int:
    try:
        return sum(file.stat().st_size for file in path.iterdir())
    except OSError:
        return 0


def best_checkpoint(paths: Sequence[Path], metric: str, mode: str = "") -> Path | None:
    """The best by a metric, of equal ones the newest; None if none has it."""
    sign = -1.0 if lower_is_better(metric, mode) else 1.0
    best: tuple[float, Path] | None = None
    for path in paths if metric else ():
        try:
            value = read_manifest(path).metrics.get(metric, math.nan)
        except CheckpointError:
            continue
        if not math.isnan(value) and (best is None or sign * value > best[0]):
            best = (sign * value, path)
    return best[1] if best else None
