"""The memory of a job in its workers: whether it fits, settings that make it fit, its divisions.

Workers measure one step and say what each part takes; those that share a host, or a GPU, share its
memory.  What another setting changes is computed from there:

    train.grad_accumulation   activations shrink with the rows of a piece
    strategy.stage            parameters, gradients, optimizer and snapshot shrink as
                              `dtd.doctor.memory` says
    fewer workers on a host   they share its memory

Settings that cost the least time come first.  Pure; sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Final

from dtd.doctor.checks import Finding, ok, warn
from dtd.doctor.memory import (
    REPLICATED,
    TRAINING_BYTES,
    Division,
    StateSize,
    least_workers,
    state_bytes,
    state_parts,
)
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SHARDED_STAGES
from dtd.text import figures
from dtd.text.shown import counted

NEEDED_PARTS: Final = (
    *("parameters", "gradients", "buckets", "optimizer", "activations", "snapshot", "runtime"),
)
_CAN_BE_DIVIDED: Final = (*SHARDED, "replicated")

Values = Mapping[str, Any]
MOST_REMEDIES: Final = 3


def check_memory(
    needs: Sequence[Values], steps: Mapping[str, Values], spec: JobSpec
) -> Iterator[Finding]:
    """Every host, or GPU, has room for the job in all the workers that share it.

    `needs` has {"worker", "place", "parts", "available_bytes"} of each worker.
    """
    places: dict[str, list[Values]] = {}
    for need in needs:
        places.setdefault(need["place"], []).append(need)
    for place, here in places.items():
        needed = sum(sum(need["parts"].values()) for need in here)
        available = min(need["available_bytes"] for need in here)
        who = counted(len(here), "worker")
        said = f"{who} on {place} will need {figures.size(needed)} of {figures.size(available)}"
        if needed <= available:
            yield ok("memory", said)
            continue
        largest = max(here, key=lambda need: sum(need["parts"].values()))
        parts = largest["parts"]
        yield warn(
            "memory",
            f"{said}: {figures.size(needed - available)} are missing, most is used by"
            f" {max(parts, key=lambda part: parts[part])}",
            _remedy(largest, steps, spec, available=available, workers_here=len(here)),
        )


def _remedy(
    largest: Values,
    steps: Mapping[str, Values],
    spec: JobSpec,
    *,
    available: int,
    workers_here: int,
) -> str:
    need = Need(
        parts=largest["parts"],
        size=StateSize(**steps[largest["worker"]]["state"]),
        division=Division(stage=_own_stage(spec), mirrors=spec.strategy.mirrors),
        world_size=len(steps),
        accumulation=spec.train.grad_accumulation,
        rows=spec.job.global_batch_size // len(steps),
    )
    stages = SHARDED_STAGES if spec.strategy.name in _CAN_BE_DIVIDED else ()
    found = remedies(need, available_bytes=available, workers_here=workers_here, stages=stages)
    if found:
        listed = "; or ".join(
            f"{one.setting} ({figures.size(one.needed_bytes)} each)" for one in found
        )
        return f"it fits with {listed}"
    recomputes = spec.train.activation_checkpointing or not largest["parts"].get("activations")
    first = "" if recomputes else "set train.activation_checkpointing and examine again, "
    return (
        f"{first}lower job.global_batch_size, or use more workers or hosts with more memory:"
        " neither smaller pieces of the batch nor a divided state are enough"
    )


def _own_stage(spec: JobSpec) -> int:
    return spec.strategy.stage if spec.strategy.sharded else REPLICATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The memory that one worker needs, as measured there.

    Attributes:
        parts: bytes of each part; "activations" and "snapshot" are two of them.
        rows: of one worker in a step.
    """

    parts: Mapping[str, int]
    size: StateSize
    division: Division
    world_size: int
    accumulation: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Settings of a job file, and the memory that a worker needs with them."""

    setting: str
    needed_bytes: int


def needed_bytes(need: Need, division: Division, accumulation: int) -> int:
    """Return the bytes that a worker needs with another division and in so many pieces."""
    saved = max(0, _state(need, need.division) - _state(need, division))
    activations = need.parts.get("activations", 0)
    per_piece = ceil(activations * need.accumulation / accumulation)
    return max(0, sum(need.parts.values()) - saved - (activations - per_piece))


def _state(need: Need, division: Division) -> int:
    """Bytes of a state, and of the copy that a checkpoint makes of it."""
    parts = state_parts(need.size, division, need.world_size)
    whole = state_bytes(need.size, division, need.world_size)
    return whole + (parts["parameters"] + parts["optimizer"] if need.parts.get("snapshot") else 0)


def remedies(
    need: Need, *, available_bytes: int, workers_here: int, stages: Sequence[int]
) -> list[Remedy]:
    """Return the settings with which every worker of a host fits; at most `MOST_REMEDIES`."""
    room = available_bytes // max(1, workers_here)
    found: list[Remedy] = []
    for setting, division, accumulation in _candidates(need, stages):
        needed = needed_bytes(need, division, accumulation)
        if needed <= room and len(found) < MOST_REMEDIES:
            found.append(Remedy(setting=setting, needed_bytes=needed))
    own = sum(need.parts.values())
    fewer = available_bytes // own if own else 0
    if 0 < fewer < workers_here and len(found) < MOST_REMEDIES:
        found.append(Remedy(setting=f"at most {fewer} of its workers there", needed_bytes=own))
    return found


def _candidates(need: Need, stages: Sequence[int]) -> Iterator[tuple[str, Division, int]]:
    """Yield each way to save alone, the cheapest first, and then the pairs of them."""
    pieces = list(_accumulations(need))
    higher = [stage for stage in stages if stage > need.division.stage]
    for accumulation in pieces:
        yield _in_pieces(accumulation), need.division, accumulation
    for stage in higher:
        yield _in_stage(stage), replace(need.division, stage=stage), need.accumulation
    for stage in higher:
        for accumulation in pieces:
            division = replace(need.division, stage=stage)
            yield f"{_in_stage(stage)} and {_in_pieces(accumulation)}", division, accumulation


def _accumulations(need: Need) -> Iterator[int]:
    """Yield the job's number of pieces doubled again and again, to single rows."""
    accumulation = 2 * need.accumulation
    while accumulation <= need.rows:
        yield accumulation
        accumulation *= 2


def _in_pieces(accumulation: int) -> str:
    return f"[train] grad_accumulation = {accumulation}"


def _in_stage(stage: int) -> str:
    return f'[strategy] name = "sharded", stage = {stage}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A way to divide the state, in the world of all workers that measured steps.

    Attributes:
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
    """Return replicated training, and each stage with the job's mirrors."""
    if not steps:
        return []
    size = StateSize(**steps[0]["state"])
    limit_bytes = max(0, min(step["available_bytes"] for step in steps) - TRAINING_BYTES)
    table = spec.strategy
    listed = []
    for stage in (REPLICATED, *SHARDED_STAGES):
        own = stage == _own_stage(spec)
        division = Division(
            stage=stage,
            mirrors=0 if stage == REPLICATED else table.mirrors,
            others_own=own and spec.strategy.has_servers,
        )
        listed.append(
            Divided(
                stage=stage,
                mirrors=division.mirrors,
                own=own,
                **state_parts(size, division, len(steps)),
                least_workers=least_workers(
                    size, division, limit_bytes=limit_bytes, most_workers=spec.elastic.max_workers
                ),
            )
        )
    return listed


def check_division(listed: Sequence[Divided], spec: JobSpec, workers: int) -> Iterator[Finding]:
    """Yield the cost, or the missing gain, of the division with so many workers."""
    table = spec.strategy
    if not table.sharded or not listed or spec.strategy.has_servers:
        return
    if 1 < workers <= table.mirrors + 1:
        yield warn(
            "strategy",
            f"with {workers} workers and strategy.mirrors = {table.mirrors} every worker"
            " holds the whole state, so nothing is saved",
            f"use {table.mirrors + 2} workers or more, or lower strategy.mirrors",
        )
    if table.mirrors == 0:
        yield warn(
            "strategy",
            "strategy.mirrors = 0: the loss of a worker costs the steps since the newest"
            " checkpoint",
            "set strategy.mirrors = 1 if memory allows, or save often (checkpoint.every_steps)",
        )
