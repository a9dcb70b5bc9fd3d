"""How long a step will take with N workers, from what was measured of workers and links.

A bucket k leaves when backward has filled it on every rank and the bucket before it is through:

    end_k  = max(end_k-1, ready_k) + wire_k
    wire_k = 2 (N-1)/N * bytes_k / bandwidth + 2 (N-1) * latency + overhead

or, for a small bucket that goes round whole (`dtd.core.ring.chunks.exchanged`),

    wire_k = (N-1) * (bytes_k / bandwidth + latency) + overhead

Every hop of the ring waits for its slowest link, so the least bandwidth and the greatest latency of
the ring's links count.  Then the control word goes round once, and the optimizer follows.  What
limits the step is what would shorten it most if it cost nothing.  Pure; times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dtd.core.ring.chunks import EXCHANGE_BYTES, BucketShape, exchanged

ALONE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One worker's own part of a step.

    Attributes:
        data_s: waiting for its rows.
        compute_s: forward and backward, and what comes before the last bucket is handed over.
        ready_s: when each bucket is full, from the moment the rows are there.
        optimizer_s: from the last bucket's sum to the committed step.
    """

    data_s: float
    compute_s: float
    ready_s: tuple[float, ...]
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpeed:
    """One direction between two workers.

    Attributes:
        sender: worker's name.
        receiver: worker's name.
        latency_s: one way, for a small message, from program to program.
        bytes_per_s: of a large transfer.
    """

    sender: str
    receiver: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One world's step.

    Attributes:
        world_size: how many workers.
        step_s: the whole step.
        data_s, compute_s, exposed_s, optimizer_s: its parts; they add up to it.
        comm_s: everything that is on the wire, hidden or not.
        samples_per_s: rows of the global batch each second.
        limit: "compute", "data loading", "latency" or "bandwidth of the link A -> B".
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
class _Ring:
    latency_s: float
    bytes_per_s: float
    overhead_s: float


def forecast(
    workers: Sequence[Compute],
    links: Sequence[LinkSpeed],
    *,
    bucket_bytes: Sequence[int],
    rows: int,
    overhead_s: float = 0.0,
) -> Forecast:
    """The step of a world.

    Args:
        workers: one for each rank.
        links: from each rank to the next one; none for a world of one.
        bucket_bytes: size of each bucket as it travels, in that order.
        rows: of a global batch.
        overhead_s: cost of a bucket that depends neither on its size nor on the world's.

    Raises:
        ValueError: a rank has another number of buckets, or the ring another number of links.
    """
    world_size = len(workers)
    if any(len(worker.ready_s) != len(bucket_bytes) for worker in workers):
        raise ValueError("ready_s and bucket_bytes differ in length")
    if world_size == 0 or len(links) != (world_size if world_size > ALONE else 0):
        raise ValueError(f"{len(links)} links do not make a ring of {world_size}")
    slowest = _slowest(workers)
    ring = _Ring(
        latency_s=max((link.latency_s for link in links), default=0.0),
        bytes_per_s=min((link.bytes_per_s for link in links), default=math.inf),
        overhead_s=overhead_s if world_size > ALONE else 0.0,
    )
    end_s, comm_s = _travel(slowest, ring, bucket_bytes, world_size)
    exposed_s = max(0.0, end_s - slowest.compute_s)
    step_s = slowest.data_s + slowest.compute_s + exposed_s + slowest.optimizer_s
    return Forecast(
        world_size=world_size,
        step_s=step_s,
        data_s=slowest.data_s,
        compute_s=slowest.compute_s,
        exposed_s=exposed_s,
        optimizer_s=slowest.optimizer_s,
        comm_s=comm_s,
        samples_per_s=rows / step_s if step_s > 0 else 0.0,
        limit=_limit(slowest, ring, links, bucket_bytes, world_size),
    )


def _slowest(workers: Sequence[Compute]) -> Compute:
    """What all ranks wait for: each part of the step at the rank where it takes longest."""
    return Compute(
        data_s=max(worker.data_s for worker in workers),
        compute_s=max(worker.compute_s for worker in workers),
        ready_s=tuple(max(ready) for ready in zip(*(w.ready_s for w in workers), strict=True)),
        optimizer_s=max(worker.optimizer_s for worker in workers),
    )


def _travel(
    compute: Compute, ring: _Ring, bucket_bytes: Sequence[int], world_size: int
) -> tuple[float, float]:
    """(when the control word is back, seconds on the wire), from the moment the rows are there."""
    hops = world_size - 1
    shapes = [BucketShape(elements=size_bytes, item_bytes=1) for size_bytes in bucket_bytes]
    whole = exchanged(shapes, world_size=world_size, chunk_bytes=EXCHANGE_BYTES)
    end_s = comm_s = 0.0
    for index, (ready_s, size_bytes) in enumerate(zip(compute.ready_s, bucket_bytes, strict=True)):
        rounds = 1 if index in whole else 2
        part = 1 if index in whole else world_size
        hop_s = size_bytes / part / ring.bytes_per_s + ring.latency_s
        wire_s = rounds * hops * hop_s + ring.overhead_s
        end_s = max(end_s, ready_s) + wire_s
        comm_s += wire_s
    word_s = hops * ring.latency_s
    return max(end_s, compute.compute_s) + word_s, comm_s + word_s


def _limit(
    compute: Compute,
    ring: _Ring,
    links: Sequence[LinkSpeed],
    bucket_bytes: Sequence[int],
    world_size: int,
) -> str:
    """What would shorten the step most if it cost nothing."""

    def step_s(compute: Compute, ring: _Ring) -> float:
        end_s, _ = _travel(compute, ring, bucket_bytes, world_size)
        return compute.data_s + max(end_s, compute.compute_s) + compute.optimizer_s

    idle = replace(
        compute, compute_s=0.0, optimizer_s=0.0, ready_s=tuple(0.0 for _ in bucket_bytes)
    )
    without = {
        "compute": step_s(idle, ring),
        "data loading": step_s(replace(compute, data_s=0.0), ring),
    }
    if links:
        narrow = min(links, key=lambda link: link.bytes_per_s)
        infinite = replace(ring, bytes_per_s=math.inf)
        without[f"bandwidth of the link {narrow.sender} -> {narrow.receiver}"] = step_s(
            compute, infinite
        )
        without["latency"] = step_s(compute, replace(ring, latency_s=0.0, overhead_s=0.0))
    return min(without, key=lambda limit: without[limit])


def memory_bytes(parts: Mapping[str, int]) -> int:
    """What a worker needs at its peak.

    Gradients of a step and the copy for a checkpoint are never there at once with activations, but
    the copy is made while the next step runs; so everything is added up.
    """
    return sum(parts.values())
