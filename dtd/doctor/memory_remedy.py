"""Settings that make a job fit the memory of a worker that is too small for it.  Pure.

A measured step says what each part takes with the job's own settings; what another setting changes
is reckoned from there:

    train.grad_accumulation   activations shrink with the rows of a piece
    strategy.stage            parameters, gradients, optimizer and snapshot shrink as
                              `dtd.doctor.state_memory` says
    fewer workers on a host   they share its memory

Settings that cost the least time come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from dtd.doctor.state_memory import Division, StateSize, state_bytes, state_parts

MOST_REMEDIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The memory that one worker needs, as measured there.

    Attributes:
        parts: bytes of each part; "activations" and "snapshot" are two of them.
        size: sizes of the state's parts.
        division: how the job divides it.
        world_size: workers of the job.
        accumulation: `train.grad_accumulation`.
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
    """Settings of a job file, and the memory that a worker needs with them.

    Attributes:
        setting: as a phrase.
        needed_bytes: of one worker.
    """

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
    """Return the settings with which every worker of a host fits; at most `MOST_REMEDIES`.

    Args:
        need: of one of the workers, all alike.
        available_bytes: the memory that they share.
        workers_here: their number.
        stages: values of `strategy.stage` that the job may use.
    """
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
