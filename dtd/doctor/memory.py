"""The memory of a worker's training: measured by part, and what a job's state needs.  Pure.

Workers measure the parts in one step (`dtd.train.memory.measured`) and report them with heartbeats.
What the state needs follows from the strategy and the number of workers; sizes are in bytes.  With
P bytes of trained parameters, O bytes of optimizer state, N workers and m mirrors, a worker holds
the share h = min(m + 1, N) / N of what is divided:

    strategy            parameters   gradients   optimizer
    replicated          P            P + G       O
    sharded, stage 1    P            P + G       h O
    sharded, stage 2    P            h P + B + G h O
    sharded, stage 3    h P + U      h P + B + G h O

G is the largest gradient, which backward makes before it is copied to its bucket, B the wire memory
of buckets that are on their way, U the parameters that are gathered at a time.  Where one parameter
is nearly all of a model, each of them is nearly as large as that: then stages 2 and 3 may need more
than stage 1.  What is not divided (frozen parameters, running buffers) is added to the parameters.

In stage 3 there are moments with all parameters in memory: P + h P when a model has been built and
is divided, and P + h P + h O + B, without gradients, when it is evaluated.  A worker needs the most
of these (`needed_bytes`).  What else a process takes when it begins to train is `TRAINING_BYTES`.
Activations and what codecs keep are not counted, nor that a part which changes when the workers of
a job change exists twice for a moment: a worker needs more than this, never less.

Adam on float32 has O = 2 P: 16 bytes a parameter when replicated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dtd.text.shown import shown_bytes
from dtd.wire import messages as m

PARTS: Final[Mapping[str, str]] = {
    "parameters": "Parameters and running buffers, as far as they are held after backward.",
    "gradients": "Gradients after backward, with the buckets that they lie in.",
    "optimizer": "State of the optimizer, averages of weights, and what a strategy adds.",
    "activations": "The most that forward and backward had allocated at once, beyond what lay there"
    " before.",
    "buckets": "All else that travels or waits to: narrow copies, residuals of a codec, scalars.",
    "snapshots": "The copy of the state that was made for the newest checkpoint.",
    "process": "All of it at its peak: on a CPU the most resident memory of the process so far, on"
    " a GPU the most that torch had allocated in the step.",
}
"""Every part, in the order of tables, and its measurement."""

PREDICTED: Final = frozenset({"parameters", "gradients", "optimizer", "snapshots"})
"""Parts that the strategy determines."""


def memory_of(reported: Iterable[m.MemoryPart]) -> dict[str, dict[str, int | None]] | None:
    """{part: {"measured_bytes", "predicted_bytes"}} in the order of `PARTS`; None if empty."""
    known = {one.name: one for one in reported}
    listed = {name: known[name] for name in PARTS if name in known}
    return {
        name: {
            "measured_bytes": one.measured_bytes,
            "predicted_bytes": one.predicted_bytes if name in PREDICTED else None,
        }
        for name, one in listed.items()
    } or None


REPLICATED: Final = 0
"""The stage of a state that is not divided."""

TRAINING_BYTES: Final = 64 << 20
"""Memory of threads, libraries and connections after a model was built: 50 MiB measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSize:
    """Sizes of the parts of a job's state.

    Attributes:
        parameter_bytes: trained parameters.
        common_bytes: frozen parameters and running buffers.
        optimizer_bytes: optimizer state that has a parameter's shape.
        pool_bytes: wire memory of the buckets that are on their way, in stages 2 and 3.
        gathered_bytes: parameters that are gathered at a time in stage 3.
        gradient_bytes: gradients that backward has made and that are not in their buckets yet.
        shows_whole: whether the whole model is gathered in stage 3, to be evaluated or shown to
            the task.
    """

    parameter_bytes: int
    common_bytes: int
    optimizer_bytes: int
    pool_bytes: int = 0
    gathered_bytes: int = 0
    gradient_bytes: int = 0
    shows_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The division of a state among the workers.

    Attributes:
        stage: `strategy.stage`; 0 (`REPLICATED`) = it is not.
        others_own: parameter servers hold what is divided, and a worker none of it.  A server that
            is left alone holds all of it, as in a world of one worker.
    """

    stage: int
    mirrors: int = 0
    others_own: bool = False

    def share_of(self, size_bytes: int, world_size: int) -> int:
        """Return the bytes of what is divided that one worker holds."""
        if self.stage == REPLICATED:
            return size_bytes
        if self.others_own:
            return 0
        return -(-size_bytes * min(self.mirrors + 1, world_size) // world_size)


def state_parts(size: StateSize, division: Division, world_size: int) -> dict[str, int]:
    """Return the bytes of "parameters", "gradients" and "optimizer" in one worker."""
    parameters = gradients = size.parameter_bytes
    share = division.share_of(size.parameter_bytes, world_size)
    if division.stage >= 2:
        gradients = share + size.pool_bytes
    if division.stage >= 3:
        parameters = share + size.gathered_bytes
    return {
        "parameters": size.common_bytes + parameters,
        "gradients": gradients + size.gradient_bytes,
        "optimizer": division.share_of(size.optimizer_bytes, world_size),
    }


def state_bytes(size: StateSize, division: Division, world_size: int) -> int:
    """Return the sum of `state_parts`."""
    return sum(state_parts(size, division, world_size).values())


def needed_bytes(size: StateSize, division: Division, world_size: int) -> int:
    """Return the most that one worker has of the state: in a step, or with all parameters."""
    in_step = state_bytes(size, division, world_size)
    if division.stage < 3:
        return in_step
    divided = size.parameter_bytes + (size.optimizer_bytes if size.shows_whole else 0)
    whole = size.common_bytes + size.parameter_bytes + (size.pool_bytes if size.shows_whole else 0)
    return max(in_step, whole + division.share_of(divided, world_size))


def least_workers(
    size: StateSize, division: Division, *, limit_bytes: int, most_workers: int
) -> int | None:
    """Return the smallest world in which the state fits each worker; None if there is none."""
    for world_size in range(1, most_workers + 1):
        if needed_bytes(size, division, world_size) <= limit_bytes:
            return world_size
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A state that does not fit a worker."""

    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory of a worker.

    Attributes:
        limit: the memory's limit, as a phrase.
        used_bytes: memory that the worker's process has already, without a state.
    """

    bytes: int
    limit: str
    used_bytes: int = 0


def shortage(
    size: StateSize,
    division: Division,
    room: Room,
    *,
    world_size: int,
    most_workers: int,
    stages: Sequence[int],
) -> Shortage | None:
    """Judge whether a state fits a worker; None if it does."""
    needed = needed_bytes(size, division, world_size)
    if needed <= room.bytes:
        return None
    parts = state_parts(size, division, world_size)
    listed = ", ".join(f"{name} {shown_bytes(count)}" for name, count in parts.items())
    among = "" if division.stage == REPLICATED else f" among {world_size} workers"
    if needed > sum(parts.values()):
        among, listed = f"{among} while it has all parameters", f"in a step {listed}"
    used = f", beside {shown_bytes(room.used_bytes)} of the process" if room.used_bytes else ""
    return Shortage(
        message=f"the state needs {shown_bytes(needed)} in each worker{among} ({listed}), without"
        f" activations, and {shown_bytes(room.bytes)} are available{used} ({room.limit})",
        remedy=_remedy(size, division, room, most_workers, stages),
    )


def _remedy(
    size: StateSize, division: Division, room: Room, most_workers: int, stages: Sequence[int]
) -> str:
    fitting = list(_fitting(size, division, room, most_workers, stages))
    if not fitting and division.mirrors > 0:
        bare = replace(division, mirrors=0)
        fitting = list(_fitting(size, bare, room, most_workers, stages))
    if not fitting:
        return f"use workers with more memory; no setting fits it into {shown_bytes(room.bytes)}"
    settings = [
        f'name = "sharded", stage = {one.stage}, mirrors = {one.mirrors} and [elastic]'
        f" min_workers = {workers}"
        for one, workers in fitting
    ]
    return f"it fits with [strategy] {'; or '.join(settings)}"


def _fitting(
    size: StateSize, division: Division, room: Room, most_workers: int, stages: Sequence[int]
) -> Iterator[tuple[Division, int]]:
    """Yield divisions with the workers they need; a higher stage only if it needs fewer."""
    fewest = most_workers + 1
    for stage in stages:
        one = replace(division, stage=stage)
        workers = least_workers(size, one, limit_bytes=room.bytes, most_workers=most_workers)
        if workers is not None and workers < fewest:
            fewest = workers
            yield one, workers
