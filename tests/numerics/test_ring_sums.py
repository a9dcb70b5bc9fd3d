"""Sums over the ring: the same bytes on every rank, in the documented order, within the bound.

Chunks of 512 bytes, so that most buckets travel in segments, or larger ones, so that all go whole.

With unit roundoff u, N numbers added one after another are off by at most about (N - 1) u sum|x|;
the tests allow twice that (`finfo.eps` is 2 u), which leaves room for double rounding in types
that the processor adds by way of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from dtd.exchange.in_process import InProcessRing
from dtd.exchange.schedule.chunks import Segments
from dtd.strategy.wire_memory import bucket_memory

pytestmark = pytest.mark.numerics

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ELEMENTS = (0, 1, 2, 7, 8, 63, 1000, 4097)
CHUNK_BYTES = 512
WHOLE = 1 << 20
"""Chunks so large that buckets of some thousand elements are exchanged whole."""


def contributions(world_size: int, elements: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * world_size + elements)
    scale = torch.tensor([10.0**power for power in range(-3, 2)], dtype=torch.float64)
    return [
        (
            torch.randn(elements, generator=generator, dtype=torch.float64)
            * scale[torch.randint(5, (elements,), generator=generator)]
        ).to(dtype)
        for _ in range(world_size)
    ]


def ring_sums(
    buckets: Sequence[Sequence[Tensor]], *, chunk_bytes: int = CHUNK_BYTES
) -> list[list[Tensor]]:
    """`buckets[i][rank]` summed over ranks: result[rank][i]."""
    world_size = len(buckets[0])
    ring = InProcessRing(world_size, chunk_bytes=chunk_bytes)

    def work(rank: int) -> list[Tensor]:
        collective = ring.collective(rank)
        own = [bucket[rank].clone() for bucket in buckets]
        collective.open_step(0, [bucket_memory(tensor) for tensor in own])
        for index in range(len(own)):
            collective.start(index)
        for index in range(len(own)):
            collective.wait(index)
        collective.gather(b"")
        collective.close_step()
        return own

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(work, range(world_size)))


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_ranks_end_with_the_same_bytes_near_the_exact_sum(
    world_size: int, dtype: torch.dtype
) -> None:
    buckets = [contributions(world_size, elements, dtype) for elements in ELEMENTS]
    sums = ring_sums(buckets)
    for index, bucket in enumerate(buckets):
        assert all(same_bytes(sums[0][index], sums[rank][index]) for rank in range(world_size))
        exact = torch.stack([tensor.double() for tensor in bucket])
        bound = (world_size - 1) * torch.finfo(dtype).eps * exact.abs().sum(0)
        error = (sums[0][index].double() - exact.sum(0)).abs()
        # The reference itself is rounded in float64.
        assert (error <= bound + 1e-15 * exact.abs().sum(0)).all()


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_segment_is_summed_in_the_order_of_the_ring(
    world_size: int, dtype: torch.dtype
) -> None:
    bucket = contributions(world_size, 4097, dtype)
    segments = Segments(4097, world_size, 64)
    expected = torch.empty(4097, dtype=dtype)
    for index in range(world_size):
        start, stop = segments.segment(index)
        total = bucket[index][start:stop].clone()
        for further in range(1, world_size):
            total = bucket[(index + further) % world_size][start:stop] + total
        expected[start:stop] = total
    assert all(same_bytes(rank_sums[0], expected) for rank_sums in ring_sums([bucket]))


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32, torch.int64], ids=str)
def test_the_way_of_a_bucket_changes_no_bit(world_size: int, dtype: torch.dtype) -> None:
    buckets = [contributions(world_size, elements, dtype) for elements in ELEMENTS]
    in_segments = ring_sums(buckets)[0]
    for rank_sums in ring_sums(buckets, chunk_bytes=WHOLE):
        assert all(map(same_bytes, rank_sums, in_segments))


def test_threads_that_run_in_another_order_change_no_byte() -> None:
    buckets = [contributions(4, elements, torch.float32) for elements in ELEMENTS]
    first, second = ring_sums(buckets)[0], ring_sums(buckets)[3]
    assert all(same_bytes(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("chunk_bytes", [8, WHOLE])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_not_finite_reach_every_rank_alike(
    dtype: torch.dtype, chunk_bytes: int
) -> None:
    bucket = [torch.ones(9, dtype=dtype) for _ in range(3)]
    bucket[0][0] = torch.nan
    bucket[1][4] = torch.inf
    bucket[1][8], bucket[2][8] = torch.inf, -torch.inf
    sums = ring_sums([bucket], chunk_bytes=chunk_bytes)
    assert all(same_bytes(sums[0][0], sums[rank][0]) for rank in range(3))
    assert sums[0][0].isfinite().tolist() == [False, *[True] * 3, False, *[True] * 3, False]
    assert sums[0][0][4] == torch.inf
    assert sums[0][0].isnan().nonzero().flatten().tolist() == [0, 8]
