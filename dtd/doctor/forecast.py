"""Forecast of the step time with N workers, from measurements of workers and links.

The exchange of a bucket starts when the backward pass has filled it on every rank.  Exchanges share
the links: while the bytes of one are on their way, those of others are sent.  All of them wait for
the slowest link, so the lowest bandwidth counts; but a segment crosses one link after another, so
latencies of the ring count by their mean, and down a tree by the highest.  Then the control word
travels to all ranks down trees, and the optimizer runs.  With local steps, the change of the model
is exchanged once per several steps, and each step bears an equal share of that time: all of the
share if training waits for the exchange, or only the part that the following steps do not hide if
they overlap with it.  Where the state is divided, gradients are reduce-scattered during the
backward pass, and the parameters are gathered while the next step loads its rows and runs forward,
which needs the first bucket at once.  Parameter servers own what is divided, and their star carries
both halves.  The limit is the part of the step whose cost, if it were zero, would shorten the step
most.

What the exchanges take is followed in `dtd.doctor.transfer`.  Pure; times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from dtd.doctor.transfer import Coded, Exchange, Ring, Star, TransferEstimate, estimate_transfer
from dtd.exchange.schedule.coding_choice import Mode
from dtd.exchange.schedule.tree import most_hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """One worker's own part of a step.

    Attributes:
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
        latency_s: one way, for a small message, from program to program.
        bytes_per_s: rate of a large transfer.
    """

    sender: str
    receiver: str
    latency_s: float
    bytes_per_s: float
    lossless: Mode = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast for one world size.

    Attributes:
        data_s, compute_s, exposed_s, optimizer_s: the parts of the step, whose sum is `step_s`;
            `exposed_s` is communication and codec time that is not hidden.
        comm_s: total communication time, hidden or not.
        sent_bytes: that one worker sends, after coding.
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
    sent_bytes: int
    coded: bool
    samples_per_s: float
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """The exchanges of a strategy.

    Attributes:
        every_steps: 1: gradients, during the backward pass; more: the change of the model over this
            number of local steps, after them.
        parameters: how the updated parameters are gathered, in the order of the forward pass; None
            where every rank computes all of them.
        copied_bytes: state that ranks copy from its owners after the update (`strategy.update`).
    """

    coded: Coded
    every_steps: int = 1
    overlaps: bool = False
    parameters: Coded | None = None
    copied_bytes: int = 0


def forecast(
    workers: Sequence[Compute],
    links: Sequence[LinkSpeed],
    *,
    what: Exchanged,
    rows: int,
    star: Star | None = None,
) -> Forecast:
    """Forecast the step of a world of some ranks, for so many rows of a global batch.

    The links lead from each rank to the next one, servers last; there are none in a world of one,
    in which exchanges are free of cost.
    """
    ring = _ring(links, star)
    if ring.ranks(len(workers)) == 1:
        what = replace(what, coded=_free(what.coded))
    step = _Step(slowest(workers), ring, what, len(workers))
    exposed_s, gone = _exposed(*step)
    step_s, compute = step.duration_s(), step.compute
    vote_s = most_hops(ring.ranks(step.world_size)) * ring.latency_s
    return Forecast(
        world_size=step.world_size,
        step_s=step_s,
        data_s=compute.data_s,
        compute_s=compute.compute_s,
        exposed_s=exposed_s,
        optimizer_s=compute.optimizer_s,
        comm_s=(gone.comm_s + vote_s) / what.every_steps,
        sent_bytes=int(gone.sent_bytes / what.every_steps),
        coded=any(ring.codes(one.coder) for one in what.coded.exchanges),
        samples_per_s=rows / step_s if step_s > 0 else 0.0,
        limit=_limit(step, links),
    )


class _Step(NamedTuple):
    compute: Compute
    ring: Ring
    what: Exchanged
    world_size: int

    def duration_s(self) -> float:
        exposed_s, _ = _exposed(*self)
        compute = self.compute
        return compute.data_s + compute.compute_s + exposed_s + compute.optimizer_s


def _ring(links: Sequence[LinkSpeed], star: Star | None) -> Ring:
    if not links:
        return Ring(latency_s=0.0, mean_latency_s=0.0, bytes_per_s=math.inf, star=star)
    narrow = min(links, key=lambda link: link.bytes_per_s)
    return Ring(
        latency_s=max(link.latency_s for link in links),
        mean_latency_s=fmean(link.latency_s for link in links),
        bytes_per_s=narrow.bytes_per_s,
        lossless=narrow.lossless,
        star=star,
    )


def _free(coded: Coded) -> Coded:
    """The same exchanges at no encoding or decoding cost."""
    exchanges = tuple(replace(one, encode_s=0.0, add_s=0.0) for one in coded.exchanges)
    return Coded(exchanges=exchanges, decode_s=(0.0,) * len(coded.decode_s))


def slowest(workers: Sequence[Compute]) -> Compute:
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
    hops = most_hops(ring.ranks(world_size))
    late_s = max(0.0, gone.end_s - compute.compute_s) + hops * ring.latency_s
    share_s = late_s / what.every_steps
    if what.overlaps:
        share_s = max(0.0, share_s - compute.data_s - compute.compute_s - compute.optimizer_s)
    gathered = _gathered(what, ring, world_size)
    hidden_s = compute.data_s + min(compute.ready_s, default=0.0)
    share_s += max(_first_s(what, ring, world_size), gathered.end_s - hidden_s)
    copied = _copied(what, ring, world_size)
    share_s += copied.end_s / what.every_steps
    return share_s, TransferEstimate(
        end_s=gone.end_s,
        comm_s=gone.comm_s + gathered.comm_s + copied.comm_s,
        sent_bytes=gone.sent_bytes + gathered.sent_bytes + copied.sent_bytes,
    )


def _gathered(what: Exchanged, ring: Ring, world_size: int) -> TransferEstimate:
    coded = what.parameters or Coded.plain(())
    return estimate_transfer([0.0] * len(coded.decode_s), coded, ring, world_size)


def _copied(what: Exchanged, ring: Ring, world_size: int) -> TransferEstimate:
    """Follow the results that are copied from their owners; nothing is computed meanwhile."""
    exchange = Exchange(bucket=0, size_bytes=what.copied_bytes, gathers=True)
    coded = Coded(exchanges=(exchange,) if what.copied_bytes else (), decode_s=(0.0,))
    return estimate_transfer([0.0], coded, ring, world_size)


def _first_s(what: Exchanged, ring: Ring, world_size: int) -> float:
    """Return when the parameters of the first layers are there, without which forward waits."""
    if what.parameters is None:
        return 0.0
    first = Coded(exchanges=what.parameters.exchanges[:1], decode_s=(0.0,))
    return estimate_transfer([0.0], first, ring, world_size).end_s


def _limit(step: _Step, links: Sequence[LinkSpeed]) -> str:
    """The part whose removal would shorten the step most."""
    compute, ring, what, _ = step
    idle = replace(
        compute, compute_s=0.0, optimizer_s=0.0, ready_s=tuple(0.0 for _ in compute.ready_s)
    )
    without = {
        "compute": step._replace(compute=idle),
        "data loading": step._replace(compute=replace(compute, data_s=0.0)),
        "codec": step._replace(what=replace(what, coded=_free(what.coded))),
    }
    if links:
        narrow = min(links, key=lambda link: link.bytes_per_s)
        infinite = replace(ring, bytes_per_s=math.inf)
        without[f"bandwidth of the link {narrow.sender} -> {narrow.receiver}"] = step._replace(
            ring=infinite
        )
        star = ring.star
        near = star and replace(star, latency_s=0.0)
        at_once = replace(ring, latency_s=0.0, mean_latency_s=0.0, star=near)
        without["latency"] = step._replace(ring=at_once)
        if star is not None:
            wide = replace(star, up_bytes_per_s=math.inf, down_bytes_per_s=math.inf)
            without[f"bandwidth of the link of {star.narrowest}"] = step._replace(
                ring=replace(ring, star=wide)
            )
    return min(without, key=lambda limit: without[limit].duration_s())
