"""What a worker was doing at some moment, as far as its log tells.  Pure.

A step's parts are told apart by the durations of the worker's previous step: data, compute (a third
of it forward), the exposed rest of the ring, optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scripts.chaosrun.log_tail import Line

FORWARD_SHARE: Final = 1 / 3
BOUNDARY_S: Final = 0.05
"""So long after a step with a checkpoint or an evaluation, that is what goes on."""

_BEFORE_TRAINING: Final = {
    "worker_started": "registering",
    "coordinator_connected": "registering",
    "coordinator_lost": "registering",
    "coordinator_unreachable": "registering",
    "job_prepared": "warming",
    "generation_assigned": "forming",
    "state_received": "forming",
    "evaluated": "evaluation",
    "checkpoint_saved": "checkpoint",
    "worker_ends": "leaving",
}


def phase_at(line: Line | None, at_s: float, *, eval_every: int, checkpoint_every: int) -> str:
    """The phase at a time after the worker's last line, or "unknown"."""
    if line is None:
        return "starting"
    if line.event != "step_committed":
        return _BEFORE_TRAINING.get(line.event, "unknown")
    since_s, step = at_s - line.at_s, int(line.fields["step"])
    if eval_every and step % eval_every == 0:
        return "evaluation"
    if checkpoint_every and step % checkpoint_every == 0 and since_s < BOUNDARY_S:
        return "checkpoint"
    return _part_of_step(line.fields, since_s)


def _part_of_step(record: Mapping[str, Any], since_s: float) -> str:
    compute_s = float(record["compute_s"])
    parts = (
        ("forward", float(record["data_s"]) + FORWARD_SHARE * compute_s),
        ("backward and reduce-scatter", (1 - FORWARD_SHARE) * compute_s),
        ("rest of the ring", float(record["exposed_s"])),
        ("optimizer", float(record["optimizer_s"])),
    )
    for name, lasts_s in parts:
        if since_s < lasts_s:
            return name
        since_s -= lasts_s
    return "rest of the ring"
