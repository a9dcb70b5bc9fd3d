"""Gradients that travel as bfloat16: the same bytes on every rank, and how far off they are.

With unit roundoff u = 2^-8 a bucket in segments is rounded N times on its way, one that goes round
whole twice, so a sum is off by at most about that many u sum|x|; what the float32 additions lose is
far less.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from dtd.engine.step_protocol import FRESH
from dtd.exchange.in_process import InProcessRing
from dtd.exchange.schedule.chunks import Segments
from dtd.strategy.choice import CODECS
from dtd.strategy.codec.api import World
from dtd.strategy.coded_buckets import make_buckets
from tests.numerics.cuts import Cut
from tests.unit.strategy.codec.narrowed import flat_of

pytestmark = pytest.mark.numerics

CPU = torch.device("cpu")
WORLDS = [2, 3, 4]
ELEMENTS = (0, 1, 2, 7, 63, 1000, 4097)
SEGMENTED = 128
WHOLE = 1 << 20
"""Bytes of chunks so small that all but tiny buckets travel in segments, or so large that none."""
UNIT = 2.0**-8
SLACK = 1.05
"""For products of roundings, and for float32's own."""
SMALLEST = 2.0**-133
"""The least bfloat16 above 0; half of it may be lost in each rounding among subnormals."""

NAN, INF = float("nan"), float("inf")


def contributions(world_size: int, elements: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(100 * world_size + elements)
    powers = torch.randint(-6, 3, (elements,), generator=generator)
    scale = 10.0 ** powers.to(dtype)
    return [
        torch.randn(elements, generator=generator, dtype=dtype) * scale for _ in range(world_size)
    ]


def ring_sums(
    buckets: Sequence[Sequence[Tensor]], *, chunk_bytes: int, wire_dtype: str = "bfloat16"
) -> tuple[list[list[Tensor]], int]:
    """`buckets[i][rank]` summed over ranks: (result[rank][i], bytes that rank 0 sent)."""
    world_size = len(buckets[0])
    ring = InProcessRing(world_size, chunk_bytes=chunk_bytes)
    codec = CODECS[wire_dtype or "none"]
    sizes = [(bucket[0].numel(), bucket[0].dtype) for bucket in buckets]

    def work(rank: int) -> tuple[list[Tensor], int]:
        collective = ring.collective(rank)
        layouts = [flat_of(*size) for size in sizes]
        staging = make_buckets(layouts, CPU, codec and codec(None))
        staging.regroup(World(rank=rank, size=world_size))
        collective.open_step(0, staging.exchanges(0))
        staging.begin(1.0)
        for index, bucket in enumerate(buckets):
            staging.flats[index].copy_(bucket[rank])
            staging.send(index, collective.start)
        for index in range(len(buckets)):
            staging.receive(index, collective.wait)
        staging.settle()
        collective.gather(b"")
        staging.close()
        return staging.flats, collective.close_step().sent_bytes

    with ThreadPoolExecutor(world_size) as pool:
        done = list(pool.map(work, range(world_size)))
    return [flats for flats, _ in done], done[0][1]


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def rounded(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def in_segments(bucket: Sequence[Tensor], add) -> Tensor:
    """Each segment summed by one rank after the other, by way of the ring."""
    world_size, elements = len(bucket), bucket[0].numel()
    segments = Segments(elements, world_size, SEGMENTED // 2)
    expected = torch.empty(elements)
    for index in range(world_size):
        start, stop = segments.segment(index)
        total = bucket[index][start:stop].bfloat16()
        for further in range(1, world_size):
            total = add(total, bucket[(index + further) % world_size][start:stop])
        expected[start:stop] = total.float()
    return expected


# --- sums ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("chunk_bytes", [SEGMENTED, WHOLE])
def test_all_ranks_end_with_the_same_bytes_within_the_bound(world_size, chunk_bytes) -> None:
    buckets = [contributions(world_size, elements) for elements in ELEMENTS]
    sums, _ = ring_sums(buckets, chunk_bytes=chunk_bytes)
    float32_sums, _ = ring_sums(buckets, chunk_bytes=chunk_bytes, wire_dtype="")
    roundings = world_size if chunk_bytes == SEGMENTED else 2
    for index, bucket in enumerate(buckets):
        assert all(same_bytes(sums[0][index], sums[rank][index]) for rank in range(world_size))
        bound = SLACK * roundings * UNIT * torch.stack(bucket).double().abs().sum(0)
        error = (sums[0][index].double() - float32_sums[0][index].double()).abs()
        assert (error <= bound).all()


@pytest.mark.parametrize("world_size", WORLDS)
def test_a_partial_sum_is_rounded_once_a_hop(world_size) -> None:
    bucket = contributions(world_size, 4097)
    expected = in_segments(bucket, lambda total, own: (own + total.float()).bfloat16())
    sums, _ = ring_sums([bucket], chunk_bytes=SEGMENTED)
    assert all(same_bytes(flats[0], expected) for flats in sums)


@pytest.mark.parametrize("world_size", WORLDS)
def test_whole_contributions_are_summed_in_float32(world_size) -> None:
    bucket = contributions(world_size, 4097)
    expected = rounded(bucket[0])
    for further in bucket[1:]:
        expected += rounded(further)
    sums, _ = ring_sums([bucket], chunk_bytes=WHOLE)
    assert all(same_bytes(flats[0], rounded(expected)) for flats in sums)


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("chunk_bytes", [SEGMENTED, WHOLE])
def test_less_is_lost_than_by_adding_in_bfloat16(world_size, chunk_bytes) -> None:
    bucket = contributions(world_size, 4097)
    exact = torch.stack(bucket).double().sum(0)
    sums, _ = ring_sums([bucket], chunk_bytes=chunk_bytes)
    narrow = in_segments(bucket, lambda total, own: own.bfloat16() + total)
    lost = [(one.double() - exact).abs().mean() for one in (sums[0][0], narrow)]
    assert 0 < lost[0] <= lost[1]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("chunk_bytes", [8, WHOLE])
def test_what_is_odd_reaches_every_rank_alike(world_size, chunk_bytes) -> None:
    bucket = [torch.ones(70) for _ in range(world_size)]
    bucket[0][0], bucket[1][4] = NAN, INF
    bucket[0][8], bucket[1][8] = INF, -INF
    for rank, tensor in enumerate(bucket):
        tensor[16:32] = torch.arange(16) * 2.0**-136 * (1 + rank)  # subnormal
        tensor[33] = -0.0
    sums, _ = ring_sums([bucket], chunk_bytes=chunk_bytes)
    assert all(same_bytes(sums[0][0], flats[0]) for flats in sums)
    got = sums[0][0]
    assert got.isnan().nonzero().flatten().tolist() == [0, 8]
    assert got.isinf().nonzero().flatten().tolist() == [4]
    small = torch.stack(bucket)[:, 16:32].double()
    error = (got[16:32].double() - small.sum(0)).abs()
    assert (error <= SLACK * world_size * (SMALLEST / 2 + UNIT * small.sum(0))).all()
    assert got[16:32].count_nonzero() > 8
    assert str(got[33].item()) == "-0.0"


# --- training --------------------------------------------------------------------------------

SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
NARROW = {"codec": "bfloat16"}
STEP = 5


@pytest.fixture
def task(regression):
    """In float32, with something to learn, and wide enough for a bucket in segments."""

    class Task(regression):
        def build_model(self):
            return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3))

        def loss(self, model, batch):
            x = batch[0].float()
            return ((model(x) - torch.sin(x[:, :3] + x[:, 3:])) ** 2).mean()

    return Task(48)


def digests(ranks) -> set[str]:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
    return {rank.outcome.digest for rank in ranks}


def losses(ranks) -> Tensor:
    return torch.tensor([record.loss for record in ranks[0].recorder.steps])


@pytest.mark.parametrize(("codec", "world_size"), [("bfloat16", 3), ("float16", 2)])
def test_replicas_are_equal_and_learn_what_float32_learns(arena, task, world_size, codec) -> None:
    job = {"steps": 60}
    plain = arena.train(task, arena.spec(job=job, optimizer=SGD), world_size, job_id="plain")
    spec = arena.spec(job=job, optimizer=SGD, strategy={"codec": codec})
    narrow = arena.train(task, spec, world_size, job_id="narrow")
    assert len(digests(narrow)) == 1
    assert digests(narrow) != digests(plain)
    sent = [[record.sent_bytes for record in ranks[0].recorder.steps] for ranks in (narrow, plain)]
    assert sum(sent[0]) < sum(sent[1])
    first, last = (losses(plain)[part].mean() for part in (slice(None, 6), slice(-6, None)))
    assert last < first / 1.3, "nothing was learnt"
    torch.testing.assert_close(losses(narrow), losses(plain), rtol=0.02, atol=0.0)


@pytest.mark.parametrize("methods", [("wait", "wait"), ("wait", "gather")])
def test_a_step_that_is_redone_leaves_no_trace(arena, task, methods) -> None:
    spec = arena.spec(job={"steps": 9}, optimizer=SGD, strategy=NARROW, sync={"bucket_mib": 0.01})
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(2)]
    ranks[0].run.adopt_local(*FRESH)
    arena.copy_state(ranks[0], ranks[1])
    meeting = threading.Barrier(2)
    arena.generation(
        ranks, wrap=lambda i, inner: Cut(inner, STEP, method=methods[i], meet=meeting.wait)
    )
    assert [rank.run.committed_step for rank in ranks] == [STEP, STEP]
    for rank in ranks:
        rank.run.adopt_local(1, STEP)
    arena.generation(ranks, generation=2)
    assert digests(ranks) == undisturbed


def test_a_checkpoint_needs_nothing_of_the_wire(arena, task) -> None:
    spec = arena.spec(
        job={"steps": 9},
        optimizer=SGD,
        strategy=NARROW,
        checkpoint={"every_steps": 3, "directory": str(arena.directory / "shared")},
    )
    undisturbed = digests(arena.train(task, spec, 2, job_id="whole"))
    ranks = [arena.start(task, spec, name=f"w{i}") for i in range(2)]
    ranks[0].run.adopt_local(*FRESH)
    arena.copy_state(ranks[0], ranks[1])
    meeting = threading.Barrier(2)
    arena.generation(ranks, wrap=lambda _, inner: Cut(inner, STEP, meet=meeting.wait))
    for rank in ranks:
        rank.run.close()
    again = [arena.start(task, spec, name=f"again{i}") for i in range(2)]
    for rank in again:
        assert rank.run.held().step == 3
        rank.run.adopt_local(1, 3)
    arena.generation(again, generation=2)
    assert digests(again) == undisturbed
