"""The memory of a job's state in one worker, with each way to divide it.  Pure.

The formula is `dtd.doctor.state_memory`; workers say what the state consists of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dtd import figures
from dtd.ctl.doctor.checks import Finding
from dtd.ctl.doctor.servers import has_servers
from dtd.doctor.state_memory import (
    REPLICATED,
    TRAINING_BYTES,
    Division,
    StateSize,
    least_workers,
    state_parts,
)
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SHARDED_STAGES
from dtd.shown import counted

HEADINGS: Final = ("STATE", "MIRRORS", "PARAMETERS", "GRADIENTS", "OPTIMIZER", "ALL", "FITS FROM")

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A way to divide the state, in the world of all workers that measured steps.

    Attributes:
        stage: `strategy.stage`; 0: replicated.
        mirrors: `strategy.mirrors`; 0 if replicated.
        own: whether it is the job's own.
        parameters, gradients, optimizer: bytes in one worker.
        least_workers: the smallest world in which it fits every one of these workers; None if no
            world that the job allows is large enough.
    """

    stage: int
    mirrors: int
    own: bool
    parameters: int
    gradients: int
    optimizer: int
    least_workers: int | None


def divided(spec: JobSpec, steps: Sequence[Values]) -> list[Divided]:
    """Return replicated training, and each stage with the job's mirrors.

    Args:
        spec: the job.
        steps: each rank's measurements.
    """
    if not steps or "state" not in steps[0]:  # from an older worker
        return []
    size = StateSize(**steps[0]["state"])
    limit_bytes = max(0, min(step["available_bytes"] for step in steps) - TRAINING_BYTES)
    table = spec.strategy
    listed = []
    for stage in (REPLICATED, *SHARDED_STAGES):
        own = stage == (table.stage if table.name in SHARDED else REPLICATED)
        division = Division(
            stage=stage,
            mirrors=0 if stage == REPLICATED else table.mirrors,
            others_own=own and has_servers(spec),
        )
        listed.append(
            Divided(
                stage=stage,
                mirrors=division.mirrors,
                own=own,
                **state_parts(size, division, len(steps)),
                least_workers=least_workers(
                    size,
                    division,
                    limit_bytes=limit_bytes,
                    most_workers=spec.elastic.max_workers,
                ),
            )
        )
    return listed


def check_division(listed: Sequence[Divided], spec: JobSpec, workers: int) -> Iterator[Finding]:
    """Yield the cost, or the missing gain, of the division with so many workers.

    Args:
        listed: of `divided`.
        spec: the job.
        workers: in the largest world.
    """
    table = spec.strategy
    if table.name not in SHARDED or not listed or has_servers(spec):
        return
    if 1 < workers <= table.mirrors + 1:
        yield Finding(
            check="strategy",
            state="warn",
            message=f"with {workers} workers and strategy.mirrors = {table.mirrors} every worker"
            " holds the whole state, so nothing is saved",
            remedy=f"use {table.mirrors + 2} workers or more, or lower strategy.mirrors",
        )
    if table.mirrors == 0:
        yield Finding(
            check="strategy",
            state="warn",
            message="strategy.mirrors = 0: the loss of a worker costs the steps since the newest"
            " checkpoint",
            remedy="set strategy.mirrors = 1 if memory allows, or save often"
            " (checkpoint.every_steps)",
        )


def state_rows(listed: Sequence[Values]) -> list[tuple[str, ...]]:
    """Return the lines of the table under `HEADINGS`."""
    rows = []
    for one in listed:
        parts = [one[part] for part in ("parameters", "gradients", "optimizer")]
        name = "replicated" if one["stage"] == REPLICATED else f"sharded, stage {one['stage']}"
        least = one["least_workers"]
        rows.append(
            (
                name + (" (the job's)" if one["own"] else ""),
                figures.NOTHING if one["stage"] == REPLICATED else str(one["mirrors"]),
                *map(figures.size, (*parts, sum(parts))),
                figures.NOTHING if least is None else counted(least, "worker"),
            )
        )
    return rows
