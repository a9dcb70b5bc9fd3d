"""Codecs on the ring: equal on all ranks, nothing lost, as published, and how few bytes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dtd.errors import ProtocolError
from dtd.strategy.codec.api import World
from dtd.strategy.codec.int8 import BLOCK, Int8
from dtd.strategy.codec.sign import Sign
from dtd.strategy.codec.sparse import RandomK, TopK, drawn
from tests.numerics.coded_ring import SEGMENTED, WHOLE, exchange, gradient, layout_of, same

pytestmark = pytest.mark.numerics

MIXED = (layout_of((64, 40), (64,), (40, 30)), layout_of((7,), (2000, 2)))
"""Two buckets of matrices and vectors, 7823 elements, no multiple of a block among them."""


def sparse(kind, density=0.05, momentum=0.0, warmup_steps=0, **options):
    return lambda: kind(density=density, momentum=momentum, warmup_steps=warmup_steps, **options)


CODECS = {
    "int8": Int8,
    "sign": Sign,
    "top_k": sparse(TopK),
    "random_k": sparse(RandomK, seed=3),
}


@pytest.mark.parametrize("chunk_bytes", [SEGMENTED, WHOLE])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("codec", CODECS)
def test_all_ranks_see_the_same_bytes_and_nothing_is_lost_for_good(
    codec, world, chunk_bytes
) -> None:
    """The results of all steps, and all ranks' residuals, add up to the sum of all gradients."""
    steps = 4
    seen = exchange(CODECS[codec], MIXED, world=world, steps=steps, chunk_bytes=chunk_bytes)
    assert same(seen, seen)
    for index, layout in enumerate(MIXED):
        came = sum(step[index].double() for step in seen[0].results)
        left = sum(one.unsent[index].double() for one in seen)
        whole = sum(
            gradient(layout, step, rank, index).double()
            for step in range(steps)
            for rank in range(world)
        )
        torch.testing.assert_close(came + left, whole, rtol=0.0, atol=2e-5)
        assert not torch.allclose(came, whole, atol=1e-3), "something has to be lost by and by"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("chunk_bytes", [SEGMENTED, WHOLE])
def test_a_step_that_is_undone_or_skipped_leaves_no_trace(codec, chunk_bytes) -> None:
    run = {"world": 2, "steps": 4, "chunk_bytes": chunk_bytes}
    undisturbed = exchange(CODECS[codec], MIXED, **run)
    undone = {0: [None], 1: [math.nan, None], 3: [math.inf, -math.inf]}
    assert same(undisturbed, exchange(CODECS[codec], MIXED, **run, undone=undone))


# --- as published -----------------------------------------------------------------------------

MATRIX = layout_of((50, 40))


def gathered(published, world: int, steps: int):
    """Sums over the ranks of what a published algorithm for one rank sends."""
    sent = [
        published([gradient(MATRIX, step, rank, 0) for step in range(steps)])
        for rank in range(world)
    ]
    return [sum(one[step] for one in sent) for step in range(steps)]


def compressed(gradients, momentum: float, mask_of):
    """Algorithm 4 of arXiv:1712.01887, line by line, without clipping; what one rank sends."""
    u = v = torch.zeros_like(gradients[0])
    sent = []
    for step, one in enumerate(gradients):
        u = momentum * u + one
        v = v + u
        mask = mask_of(step, v)
        sent.append(v * mask)
        u, v = u * ~mask, v * ~mask
    return sent


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_top_k_is_deep_gradient_compression(momentum) -> None:
    def mask_of(step, v):
        return v.abs() >= v.abs().sort(descending=True).values[100 - 1]

    seen = exchange(sparse(TopK, momentum=momentum), [MATRIX], world=3, steps=6)
    want = gathered(lambda gradients: compressed(gradients, momentum, mask_of), 3, 6)
    for (got,), expected in zip(seen[0].results, want, strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_random_k_is_the_same_with_other_masks(momentum) -> None:
    def mask_of(step, v):
        mask = torch.zeros_like(v, dtype=torch.bool)
        mask[drawn(len(v), 100, 7, step, 0, 0)] = True
        return mask

    seen = exchange(sparse(RandomK, momentum=momentum, seed=7), [MATRIX], world=3, steps=6)
    want = gathered(lambda gradients: compressed(gradients, momentum, mask_of), 3, 6)
    for (got,), expected in zip(seen[0].results, want, strict=True):
        torch.testing.assert_close(got, expected)


def test_sign_is_error_feedback_signsgd() -> None:
    """Algorithm 1 of arXiv:1901.09847 on each rank, with a learning rate of 1."""

    def published(gradients):
        error, sent = torch.zeros_like(gradients[0]), []
        for one in gradients:
            p = one + error
            sent.append(p.abs().mean() * p.sign())
            error = p - sent[-1]
        return sent

    seen = exchange(Sign, [MATRIX], world=3, steps=6)
    for (got,), expected in zip(seen[0].results, gathered(published, 3, 6), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("chunk_bytes", [SEGMENTED, WHOLE])
def test_int8_is_off_by_a_step_of_each_rank_at_most(chunk_bytes) -> None:
    world = 4
    (got,) = exchange(Int8, [MATRIX], world=world, steps=1, chunk_bytes=chunk_bytes)[0].results[0]
    parts = [gradient(MATRIX, 0, rank, 0) for rank in range(world)]
    largest = sum(
        torch.nn.functional.pad(part, (0, -len(part) % BLOCK)).view(-1, BLOCK).abs().amax(1)
        for part in parts
    )
    bound = (world * largest / 254).repeat_interleave(BLOCK)[: len(got)]
    error = (got - sum(parts)).abs()
    assert error.max() > 0
    assert (error <= bound).all()


# --- bytes ------------------------------------------------------------------------------------

BIG = [layout_of((512, 256))]


@pytest.mark.parametrize(
    ("codec", "fewer"),
    [
        (Int8, 3.9),
        (sparse(TopK, density=0.01), 24.9),
        (sparse(RandomK, density=0.01, seed=0), 99.9),
        (Sign, 15.9),
    ],
)
def test_bytes_of_four_ranks_against_float32(codec, fewer) -> None:
    (sent,) = exchange(codec, BIG, world=4, steps=1)[0].sent_bytes
    plain = 2 * 3 / 4 * 4 * BIG[0].elements
    assert fewer <= plain / sent < 1.02 * fewer


@pytest.mark.parametrize("codec", [TopK, RandomK])
def test_more_travels_in_the_warm_up(codec) -> None:
    options = {"seed": 0} if codec is RandomK else {}
    made = sparse(codec, density=0.01, warmup_steps=6, **options)
    seen = exchange(made, BIG, world=2, steps=7)
    ratios = [sent / seen[0].sent_bytes[-1] for sent in seen[0].sent_bytes]
    expected = [25.0, 25.0, 6.25, 6.25, 1.5625, 1.5625, 1.0]
    assert ratios == pytest.approx(expected, rel=0.01)


# --- what is left alone, and what is refused --------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_other_types_and_small_tensors_are_left_alone(codec) -> None:
    codec, cpu = CODECS[codec](), torch.device("cpu")
    assert codec.coder(layout_of((64, 64), dtype=torch.float64), 0, cpu) is None
    small = codec.coder(layout_of((9, 9), (4000,)), 0, cpu)
    assert (small is None) == (not isinstance(codec, Int8))


def test_with_momentum_small_tensors_have_theirs() -> None:
    """The velocity of all ranks together is that of one optimizer."""
    small = layout_of((30,))
    seen = exchange(sparse(TopK, momentum=0.9), [small], world=2, steps=4)
    velocity = torch.zeros(30)
    for step, (got,) in enumerate(seen[0].results):
        velocity = 0.9 * velocity + sum(gradient(small, step, rank, 0) for rank in range(2))
        torch.testing.assert_close(got, velocity)


@pytest.mark.parametrize("place", [-1, 2000])
def test_a_place_outside_of_the_bucket_is_another_ranks_fault(place) -> None:
    coder = sparse(TopK)().coder(MATRIX, 0, torch.device("cpu"))
    coder.restart(World(rank=0, size=2))
    (wire,) = coder.wires(World(rank=0, size=2), 0)
    segments = torch.zeros(wire.elements, dtype=wire.dtype)
    start, _ = World(rank=1, size=2).own_segment(wire.elements)
    segments[start] = place
    with pytest.raises(ProtocolError, match="rank 1 selected"):
        coder.decode(torch.zeros(2000), [segments])


# --- training ---------------------------------------------------------------------------------

FEW = {"density": 0.05, "momentum": 0.9, "density_warmup_steps": 40}
LEFT = {"int8": ({}, 0.05), "sign": ({}, 0.2), "top_k": (FEW, 0.3), "random_k": (FEW, 0.3)}


@pytest.fixture
def task(regression):
    """In float32, with something to learn, and matrices that do not travel whole."""

    class Task(regression):
        def build_model(self):
            hidden = nn.Sequential(nn.Linear(6, 256), nn.Tanh())
            return nn.Sequential(hidden, nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 3))

        def loss(self, model, batch):
            x = batch[0].float()
            return ((model(x) - torch.sin(x[:, :3] + x[:, 3:])) ** 2).mean()

    return Task(48)


def test_ranks_learn_what_one_process_learns_in_float32(arena, task) -> None:
    """That process is left with a twentieth of the first loss; `LEFT` is what codecs may have."""
    arena.chunk_bytes = 64 * 1024
    job, plain = {"steps": 120}, {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    (alone,) = arena.train(task, arena.spec(job=job, optimizer=plain), 1, job_id="alone")
    losses = [record.loss for record in alone.recorder.steps]
    assert sum(losses[-20:]) / 20 < 0.05 * losses[0]
    for codec, (options, left) in LEFT.items():
        optimizer = plain | ({"momentum": 0.0} if "momentum" in options else {})
        spec = arena.spec(job=job, optimizer=optimizer, strategy={"codec": codec, **options})
        ranks = arena.train(task, spec, 2, job_id=codec)
        assert len({rank.outcome.digest for rank in ranks}) == 1
        coded = [record.loss for record in ranks[0].recorder.steps]
        assert sum(coded[-20:]) / 20 < left * losses[0]
        assert coded != losses
