"""Ranks that exchange given gradients by a codec over the in-process ring.

Some steps are made several times: gradients are keyed by step and rank, so they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dtd.exchange.in_process import InProcessRing
from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.coded_buckets import CodedBuckets

SEGMENTED = 1 << 12
"""Chunks so small that test buckets go round in segments."""
WHOLE = 1 << 20


def layout_of(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> FlatLayout:
    """A bucket of these tensors."""
    places, start = [], 0
    for shape in shapes:
        stop = start + int(torch.Size(shape).numel())
        places.append(TensorPlace(start=start, stop=stop, shape=shape))
        start = stop
    return FlatLayout(dtype=dtype, tensors=tuple(places))


def gradient(layout: FlatLayout, *key: int) -> Tensor:
    """A rank's gradient in one bucket; the tensors' sizes differ."""
    generator = torch.Generator().manual_seed(hash(key) % 2**31)
    flat = torch.randn(layout.elements, generator=generator).to(layout.dtype)
    for index, place in enumerate(layout.tensors):
        flat[place.start : place.stop] *= 0.1**index
    return flat


@dataclass
class Exchanged:
    """One rank's view of an exchange.

    Attributes:
        results: flats of each committed step.
        sent_bytes: of each exchange, those that were undone included.
        unsent: at the end, by bucket; None where a bucket has no residual.
    """

    results: list[list[Tensor]] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)
    unsent: list[Tensor | None] = field(default_factory=list)


def exchange(
    make: Callable[[], Any],
    layouts: Sequence[FlatLayout],
    *,
    world: int,
    steps: int,
    chunk_bytes: int = SEGMENTED,
    undone: Mapping[int, Sequence[float | None]] | None = None,
    gradients: Callable[..., Tensor] = gradient,
) -> list[Exchanged]:
    """Let all ranks take some steps; returns what each saw.

    Args:
        make: makes a rank's codec.
        layouts: of the buckets.
        world: number of ranks.
        steps: that are committed.
        chunk_bytes: most in one frame.
        undone: for a step, exchanges that are rolled back before it is committed; a number takes
            the place of one gradient of the last rank in them.
        gradients: of (layout, step, rank, bucket).
    """
    undone = undone or {}
    ring = InProcessRing(world, chunk_bytes=chunk_bytes, timeout_s=30)

    def work(rank: int) -> Exchanged:
        seen = Exchanged()
        buckets = CodedBuckets(layouts, torch.device("cpu"), make())
        buckets.regroup(World(rank=rank, size=world))
        collective, opened = ring.collective(rank), 0
        for step in range(steps):
            for odd in (*undone.get(step, ()), "commit"):
                collective.open_step(opened, buckets.exchanges(step))
                buckets.begin(1.0)
                for index, layout in enumerate(layouts):
                    buckets.flats[index].copy_(gradients(layout, step, rank, index))
                    if isinstance(odd, float) and rank == world - 1:
                        buckets.flats[index][layout.elements // 2] = odd
                    buckets.send(index, collective.start)
                for index in range(len(layouts)):
                    buckets.receive(index, collective.wait)
                if isinstance(odd, float):
                    assert not any(bool(flat.isfinite().all()) for flat in buckets.flats)
                collective.gather(b"")
                seen.sent_bytes.append(collective.close_step().sent_bytes)
                opened += 1
                if odd != "commit":
                    buckets.rollback()
            buckets.commit()
            seen.results.append([flat.clone() for flat in buckets.flats])
        seen.unsent = [
            None if coder.residual is None else coder.residual.current.clone()
            for coder in buckets._coders
        ]
        buckets.close()
        return seen

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(work, range(world)))


def same(one: Sequence[Exchanged], other: Sequence[Exchanged]) -> bool:
    """Whether all ranks of both saw the same bytes."""
    first = [tensor for step in one[0].results for tensor in step]
    return all(
        torch.equal(tensor.view(torch.int32), against.view(torch.int32))
        for seen in (*one, *other)
        for tensor, against in zip(
            [tensor for step in seen.results for tensor in step], first, strict=True
        )
    )
