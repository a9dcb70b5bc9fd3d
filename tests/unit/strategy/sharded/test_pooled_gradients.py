"""Stage 2: gradients have memory only in a few buckets and for what the rank holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dtd.engine.shards import WHOLE
from dtd.errors import TaskError
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.exchange.schedule.chunks import Operation
from dtd.strategy.api import LossSum
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.codec.api import FlatLayout, TensorPlace, World
from dtd.strategy.sharded.gradients import PooledGradients
from dtd.strategy.sharded.wire_pool import PIECES, Turn, WirePool, pool_bytes, usual_bytes

LAYERS = 9


class Calls:
    """The ring of one rank: every exchange is complete at once; calls are written down."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def start(self, index: int) -> None:
        self.seen.append(("start", index))

    def wait(self, index: int) -> None:
        assert ("start", index) in self.seen, "waits for an exchange that was not started"
        self.seen.append(("wait", index))


class Work:
    """Some backward passes."""

    def __init__(self, *passes: Callable[[], Any]) -> None:
        self._passes = passes

    def backward(self, update: str, number: int, *, passed: Callable[[], None]) -> LossSum:
        for one in self._passes:
            one().backward()
            passed()
        return LossSum(loss_sum=0.0, weight=0.0)


def chain() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(LAYERS))).double()


def pooled(model: nn.Module, *, passes: int = 1, mirrors: int = 0) -> PooledGradients:
    named = [(name, parameter) for name, parameter in model.named_parameters()]
    plan = plan_buckets(parameter_shapes(named), bucket_bytes=96, first_bucket_bytes=96)
    assert len(plan.buckets) == LAYERS
    return PooledGradients(
        [parameter for _, parameter in named],
        plan,
        mirrors=mirrors,
        codec=None,
        passes=lambda step, world_size: passes,
    )


def run(gradients: PooledGradients, work: Work, holds: Any = WHOLE) -> Calls:
    calls = Calls()
    gradients.regroup(World(rank=0, size=1))
    gradients.exchanges(0)
    gradients.begin(lambda: None, 1.0, holds)
    gradients.compute(work, calls.start, calls.wait, lambda: None)  # type: ignore[arg-type]
    gradients.collect(calls.wait)
    return calls


def plain(*losses: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
    """The same sums, bucket by bucket, from torch alone."""
    model = chain()
    for loss in losses:
        loss(model).backward()
    sums = [
        torch.zeros_like(p) if p.grad is None else p.grad for p in reversed([*model.parameters()])
    ]
    return [torch.cat([one.reshape(-1) for one in sums[at : at + 2]]) for at in range(0, 18, 2)]


def assert_sums(gradients: PooledGradients, expected: list[torch.Tensor]) -> None:
    for bucket, one in enumerate(expected):
        torch.testing.assert_close(gradients.part(bucket, 0, 12), one)


X = torch.arange(6, dtype=torch.float64).view(2, 3) / 10


def test_a_bucket_waits_for_the_piece_of_an_earlier_one() -> None:
    model = chain()
    gradients = pooled(model)
    calls = run(gradients, Work(lambda: model(X).square().sum()))
    for bucket in range(PIECES, LAYERS):
        waited = calls.seen.index(("wait", bucket - PIECES))
        assert waited < calls.seen.index(("start", bucket))
    assert_sums(gradients, plain(lambda m: m(X).square().sum()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_the_next_exchange_may_wait_for_a_piece() -> None:
    """Another one that waits would keep this rank from starting the next, and block the link."""
    layouts = [FlatLayout(dtype=torch.float64, tensors=(TensorPlace(start=0, stop=2, shape=(2,)),))]
    pool, calls = WirePool(layouts, mirrors=0, codec=None), Calls()
    pool.exchanges([Turn(Operation.REDUCE_SCATTER, 0)] * (2 * PIECES))
    pool.begin(calls.start, calls.wait, lambda index, result: None)
    for index in range(PIECES):
        assert pool.piece(index) is not None
        pool.start()
    assert pool.piece(PIECES + 1) is None
    assert ("wait", 0) not in calls.seen
    assert pool.piece(PIECES) is not None
    assert calls.seen[-1] == ("wait", 0)


@pytest.mark.parametrize(
    ("sizes", "usual", "pool"),
    [
        ([7], 7, 28),
        ([5, 6, 7, 8], 8, 32),
        ([5, 6, 7, 80], 7, 28 + 80),
        ([80, 1, 1, 1, 1, 90], 1, 4 + 90),
        ([80, 80, 80, 1], 80, 320),
        ([2, 1], 2, 8),
        ([3, 1], 1, 4 + 3),
    ],
)
def test_far_larger_buckets_share_a_piece_of_their_own(sizes, usual, pool) -> None:
    assert usual_bytes(sizes) == usual
    assert pool_bytes(sizes) == pool


def test_a_large_bucket_waits_for_the_one_before_it_and_for_no_other() -> None:
    """Buckets 0 to 3 have 2 elements, bucket 4 has 100."""
    layouts = [
        FlatLayout(dtype=torch.float64, tensors=(TensorPlace(start=0, stop=n, shape=(n,)),))
        for n in (2, 2, 2, 2, 100)
    ]
    pool, calls = WirePool(layouts, mirrors=0, codec=None), Calls()
    order = [4, 0, 1, 2, 3, 0, 4]
    turns = [Turn(Operation.REDUCE_SCATTER, bucket) for bucket in order]
    assert [len(one.view) for one in pool.exchanges(turns)] == [800, *[16] * 5, 800]
    assert pool.size_bytes == 800 + PIECES * 16
    pool.begin(calls.start, calls.wait, lambda index, result: None)
    for index in range(5):
        assert pool.piece(index) is not None
        pool.start()
    assert calls.seen == [("start", index) for index in range(5)]
    assert pool.piece(6) is None, "another one comes first"
    assert pool.piece(5) is not None
    assert calls.seen[5:] == [("wait", 0), ("wait", 1)], "the small one before it in its piece"
    pool.start()
    assert pool.piece(6) is not None, "the large one before it is complete"
    assert calls.seen[7:] == [("start", 5)]


def test_a_gradient_after_its_bucket_has_left_is_refused() -> None:
    model = chain()
    gradients = pooled(model)

    def twice() -> Any:
        model(X).square().sum().backward()
        return model(X).square().sum()

    with pytest.raises(TaskError, match="twice in one backward"):
        run(gradients, Work(twice))
    gradients.release()
    model(X).square().sum().backward()  # as a task's metrics may
    assert all(parameter.grad is not None for parameter in model.parameters())
