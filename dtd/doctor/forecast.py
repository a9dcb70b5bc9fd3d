"""Forecast of the step time with N workers, from measurements of workers and links.

The exchange of a bucket starts when the backward pass has filled it on every rank and the previous
exchange is complete; `dtd.doctor.transfer` computes when it ends, with or without a codec.
Every hop of the ring waits for the slowest link, so the lowest bandwidth and the highest latency of
the ring's links count.  Then the control word travels once around the ring, and the optimizer
runs.  With local steps, the change of the model is exchanged once per several steps, and each step
bears an equal share of that time: all of the share if training waits for the exchange, or only the
part that the following steps do not hide if they overlap with it.  Where the state is divided,
gradients are reduce-scattered during the backward pass, and the parameters are gathered while the
next step loads its rows and runs forward, which needs the first bucket at once.  Parameter servers
own what is divided, and their star carries both halves.  The limit is the
part of the step whose cost, if it were zero, would shorten the step most.  Pure; times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dtd.doctor.transfer import Coded, Ring, Star, TransferEstimate, estimate_transfer

ALONE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One worker's own part of a step.

    Attributes:
        data_s: time spent waiting for its rows.
        compute_s: forward and backward pass, until the last bucket is submitted.
        ready_s: time at which each bucket is full, from the arrival of the rows.
        optimizer_s: time from the last bucket's sum to the committed step.
    """

    data_s: float
    compute_s: float
    ready_s: tuple[float, ...]
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """One direction between two workers.

    Attributes:
        sender: name of the sending worker.
        receiver: name of the receiving worker.
        latency_s: one way, for a small message, from program to program.
        bytes_per_s: rate of a large transfer.
    """

    sender: str
    receiver: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for one world size.

    Attributes:
        world_size: number of workers.
        step_s: duration of the whole step.
        data_s, compute_s, exposed_s, optimizer_s: the parts of the step, whose sum is `step_s`;
            `exposed_s` is communication and codec time that is not hidden.
        comm_s: total communication time, hidden or not.
        samples_per_s: rows of the global batch per second.
        limit: "compute", "data loading", "codec", "latency", "bandwidth of the link A -> B" or,
            with servers, "bandwidth of the link of A".
    """

    world_size: int
    step_s: float
    data_s: float
    compute_s: float
    exposed_s: float
    optimizer_s: float
    comm_s: float
    samples_per_s: float
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The exchanges of a strategy.

    Attributes:
        coded: how buckets are encoded.
        every_steps: 1: gradients, during the backward pass; more: the change of the model over this
            number of local steps, after them.
        overlaps: whether changes are exchanged while the next steps run.
        parameters: how the updated parameters are gathered, in the order of the forward pass; None
            where every rank computes all of them.
    """

    coded: Coded
    every_steps: int = 1
    overlaps: bool = False
    parameters: Coded | None = None


def forecast(
    workers: Sequence[Compute],
    links: Sequence[LinkSpeed],
    *,
    what: Exchanged,
    rows: int,
    overhead_s: float = 0.0,
    star: Star | None = None,
) -> Forecast:
    """Forecast the step of a world.

    Args:
        workers: one entry for each rank.
        links: from each rank to the next one, servers last; none for a world of one.
        what: the exchanges; free of cost in a world of one.
        rows: rows of a global batch.
        overhead_s: fixed cost of an exchange, independent of its size and of the world size.
        star: the links with parameter servers; None without servers.

    Raises:
        ValueError: a rank's number of buckets differs from the codec's, or the links are not one
            for each rank.
    """
    world_size, buckets = len(workers), len(what.coded.decode_s)
    if any(len(worker.ready_s) != buckets for worker in workers):
        raise ValueError("ready_s and decode_s differ in length")
    ring = _ring(links, overhead_s, star)
    ranks = ring.ranks(world_size)
    if world_size == 0 or len(links) != (ranks if ranks > ALONE else 0):
        raise ValueError(f"{len(links)} links do not make a ring of {ranks}")
    if ranks == ALONE:
        what = replace(what, coded=_free(what.coded))
    slowest = _slowest(workers)
    exposed_s, gone = _exposed(slowest, ring, what, world_size)
    step_s = slowest.data_s + slowest.compute_s + exposed_s + slowest.optimizer_s
    return Forecast(
        world_size=world_size,
        step_s=step_s,
        data_s=slowest.data_s,
        compute_s=slowest.compute_s,
        exposed_s=exposed_s,
        optimizer_s=slowest.optimizer_s,
        comm_s=(gone.comm_s + (ranks - 1) * ring.latency_s) / what.every_steps,
        samples_per_s=rows / step_s if step_s > 0 else 0.0,
        limit=_limit(slowest, ring, links, what, world_size),
    )


def sent_bytes(what: Exchanged, world_size: int, star: Star | None = None) -> int:
    """Bytes that one worker sends per step."""
    free = Ring(latency_s=0.0, bytes_per_s=math.inf, overhead_s=0.0, star=star)
    gone = estimate_transfer([0.0] * len(what.coded.decode_s), what.coded, free, world_size)
    gathered = _gathered(what, free, world_size)
    return (gone.sent_bytes + gathered.sent_bytes) // what.every_steps


def _ring(links: Sequence[LinkSpeed], overhead_s: float, star: Star | None) -> Ring:
    """The ring as limited by its slowest links, for which every hop waits."""
    return Ring(
        latency_s=max((link.latency_s for link in links), default=0.0),
        bytes_per_s=min((link.bytes_per_s for link in links), default=math.inf),
        overhead_s=overhead_s if links else 0.0,
        star=star,
    )


def _free(coded: Coded) -> Coded:
    """The same exchanges at no encoding or decoding cost."""
    exchanges = tuple(replace(one, encode_s=0.0, add_s=0.0) for one in coded.exchanges)
    return Coded(exchanges=exchanges, decode_s=(0.0,) * len(coded.decode_s))


def _slowest(workers: Sequence[Compute]) -> Compute:
    """The slowest rank of each part of the step, for which all ranks wait."""
    return Compute(
        data_s=max(worker.data_s for worker in workers),
        compute_s=max(worker.compute_s for worker in workers),
        ready_s=tuple(max(ready) for ready in zip(*(w.ready_s for w in workers), strict=True)),
        optimizer_s=max(worker.optimizer_s for worker in workers),
    )


def _exposed(
    compute: Compute, ring: Ring, what: Exchanged, world_size: int
) -> tuple[float, TransferEstimate]:
    """(how long a step waits for communication and its codec, the exchanges of the buckets)."""
    local = what.every_steps > 1
    full_s = (compute.compute_s,) * len(compute.ready_s) if local else compute.ready_s
    gone = estimate_transfer(full_s, what.coded, ring, world_size)
    hops = ring.ranks(world_size) - 1
    late_s = max(0.0, gone.end_s - compute.compute_s) + hops * ring.latency_s
    share_s = late_s / what.every_steps
    if what.overlaps:
        share_s = max(0.0, share_s - compute.data_s - compute.compute_s - compute.optimizer_s)
    gathered = _gathered(what, ring, world_size)
    hidden_s = compute.data_s + min(compute.ready_s, default=0.0)
    share_s += max(_first_s(what, ring, world_size), gathered.end_s - hidden_s)
    both = TransferEstimate(
        end_s=gone.end_s,
        comm_s=gone.comm_s + gathered.comm_s,
        sent_bytes=gone.sent_bytes + gathered.sent_bytes,
    )
    return share_s, both


def _gathered(what: Exchanged, ring: Ring, world_size: int) -> TransferEstimate:
    """Follow the parameters that are gathered for a step."""
    coded = what.parameters or Coded.plain(())
    return estimate_transfer([0.0] * len(coded.decode_s), coded, ring, world_size)


def _first_s(what: Exchanged, ring: Ring, world_size: int) -> float:
    """Return when the parameters of the first layers are there, without which forward waits."""
    if what.parameters is None:
        return 0.0
    first = Coded(exchanges=what.parameters.exchanges[:1], decode_s=(0.0,))
    return estimate_transfer([0.0], first, ring, world_size).end_s


def _limit(
    compute: Compute,
    ring: Ring,
    links: Sequence[LinkSpeed],
    what: Exchanged,
    world_size: int,
) -> str:
    """The part whose removal would shorten the step most."""

    def step_s(compute: Compute, ring: Ring, what: Exchanged = what) -> float:
        exposed_s, _ = _exposed(compute, ring, what, world_size)
        return compute.data_s + compute.compute_s + exposed_s + compute.optimizer_s

    idle = replace(
        compute, compute_s=0.0, optimizer_s=0.0, ready_s=tuple(0.0 for _ in compute.ready_s)
    )
    without = {
        "compute": step_s(idle, ring),
        "data loading": step_s(replace(compute, data_s=0.0), ring),
        "codec": step_s(compute, ring, replace(what, coded=_free(what.coded))),
    }
    if links:
        narrow = min(links, key=lambda link: link.bytes_per_s)
        infinite = replace(ring, bytes_per_s=math.inf)
        without[f"bandwidth of the link {narrow.sender} -> {narrow.receiver}"] = step_s(
            compute, infinite
        )
        star = ring.star
        near = star and replace(star, latency_s=0.0)
        without["latency"] = step_s(
            compute, replace(ring, latency_s=0.0, overhead_s=0.0, star=near)
        )
        if star is not None:
            wide = replace(star, up_bytes_per_s=math.inf, down_bytes_per_s=math.inf)
            without[f"bandwidth of the link of {star.narrowest}"] = step_s(
                compute, replace(ring, star=wide)
            )
    return min(without, key=lambda limit: without[limit])
