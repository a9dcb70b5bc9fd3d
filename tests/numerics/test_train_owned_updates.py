"""Ranks that round their updates differently, and copy those of the owner of each part."""

from __future__ import annotations

import threading

import pytest
import torch

from dtd.errors import DivergenceError, RingBroken
from dtd.strategy import wire_memory
from dtd.train.state import owned_updates
from tests.numerics.cuts import ranks_of

pytestmark = pytest.mark.numerics

OWNER = {"update": "owner"}


class Rounding(torch.optim.Adam):
    """Adam on a device whose results end in other bits."""

    def __init__(self, parameters, ulps: int) -> None:
        super().__init__(parameters, lr=0.01)
        self._ulps = ulps
        self.computed = torch.empty(0)

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            for tensor in (parameter, self.state[parameter]["exp_avg"]):
                tensor.mul_(1 + self._ulps * torch.finfo(tensor.dtype).eps)
        self.computed = torch.cat([one.reshape(-1) for one in self.param_groups[0]["params"]])


@pytest.fixture
def unlike(regression):
    """A task whose ranks, in the order in which they start, have unlike devices."""

    class Unlike(regression):
        def __init__(self) -> None:
            super().__init__()
            self.optimizers: list[Rounding] = []

        def build_optimizer(self, parameters):
            self.optimizers.append(Rounding(parameters, ulps=4 * len(self.optimizers) + 4))
            return self.optimizers[-1]

    return Unlike


def trained(arena, task, spec, count: int):
    return arena.generation(ranks_of(arena, task, spec, count))


def assert_equal(ranks) -> None:
    for rank in ranks:
        assert rank.error is None, rank.error
    assert len({rank.digest for rank in ranks}) == 1


def test_without_an_owner_unlike_ranks_diverge(arena, unlike) -> None:
    ranks = trained(arena, unlike(), arena.spec(train={"digest_every": 1}), 2)
    assert all(isinstance(rank.error, DivergenceError) for rank in ranks)


def _batch(monkeypatch, size_bytes):
    for module in (owned_updates, wire_memory):
        monkeypatch.setattr(module, "BATCH_BYTES", size_bytes)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_bytes", [wire_memory.BATCH_BYTES, 300])
def test_unlike_ranks_are_equal_after_every_step(
    arena, unlike, world_size, batch_bytes, monkeypatch
) -> None:
    _batch(monkeypatch, batch_bytes)
    spec = arena.spec(train={"digest_every": 1, "eval_every": 3, "ema_decay": 0.5}, strategy=OWNER)
    ranks = trained(arena, unlike(), spec, world_size)
    assert_equal(ranks)
    assert len({rank.outcome.digest for rank in ranks}) == 1
    for rank in ranks:
        assert [one.step for one in rank.recorder.steps] == list(range(1, 10))


def test_a_parameter_that_is_not_contiguous_travels_whole(arena, unlike, monkeypatch) -> None:
    class Transposed(unlike):
        def build_model(self):
            model = super().build_model()
            model[0].weight.data = model[0].weight.data.t().contiguous().t()
            return model

    _batch(monkeypatch, 64)
    ranks = trained(arena, Transposed(), arena.spec(train={"digest_every": 1}, strategy=OWNER), 3)
    assert not ranks[0].model[0].weight.is_contiguous()
    assert_equal(ranks)


def test_the_result_is_that_of_one_process_but_for_rounding(arena, unlike) -> None:
    (alone,) = trained(arena, unlike(), arena.spec(), 1)
    ranks = trained(arena, unlike(), arena.spec(strategy=OWNER), 3)
    for ours, theirs in zip(ranks[0].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_each_rank_owns_a_part(arena, unlike, monkeypatch) -> None:
    """What is copied is not the state of a single rank."""
    _batch(monkeypatch, 300)
    task = unlike()
    ranks = trained(arena, task, arena.spec(job={"steps": 1}, strategy=OWNER), 3)
    result = torch.cat([one.view(-1) for one in ranks[0].parameters()])
    owned = torch.stack([result == one.computed for one in task.optimizers])
    assert owned.any(dim=0).all()
    for rank in range(3):
        assert (owned[rank] & (owned.sum(dim=0) == 1)).any(), rank


class CutAmongCopies:
    """A collective that raises in a call of one method while the third step is copied."""

    def __init__(self, inner, rank, method: str, call: int, meet=lambda: None) -> None:
        self._inner, self._rank, self._method, self._left = inner, rank, method, call
        self._meet = meet

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name != self._method or self._rank.run.committed_step != 3:
            return value
        self._left -= 1
        return value if self._left >= 0 else self._cut

    def _cut(self, *arguments):
        self._meet()
        raise RingBroken("cut by the test")


@pytest.mark.parametrize("method", ["open_step", "start", "wait", "close_step"])
@pytest.mark.parametrize("call", [0, 1, 2])
def test_a_break_among_the_copies_loses_no_step(arena, unlike, method, call, monkeypatch) -> None:
    """Some ranks have a part of the copies, others none; all have committed the step."""
    _batch(monkeypatch, 300)
    spec = arena.spec(job={"steps": 8}, train={"digest_every": 1}, strategy=OWNER)
    ranks = ranks_of(arena, unlike(), spec, 3)
    call += method == "close_step"  # the first one closes the step itself

    def wrap(index, inner):
        return CutAmongCopies(inner, ranks[0], method, call) if index == 0 else inner

    arena.generation(ranks, wrap=wrap)
    assert all(isinstance(rank.error, RingBroken) for rank in ranks)
    assert {rank.run.held().step for rank in ranks} == {3}
    assert len({rank.digest for rank in ranks}) > 1
    for rank in ranks[1:]:
        rank.run.adopt_local(1, 3)
    arena.generation(ranks[1:], generation=4)
    assert_equal(ranks[1:])
    for rank in ranks[1:]:
        assert [one.step for one in rank.recorder.steps] == list(range(1, 9))
        assert not any(one.rows_missing or one.rows_repeated for one in rank.recorder.steps)


def test_a_digest_of_results_that_are_replaced_is_dropped(arena, unlike) -> None:
    """One rank has all copies and has hashed them; another one has none, and becomes an owner."""
    spec = arena.spec(job={"steps": 8}, train={"digest_every": 1}, strategy=OWNER)
    ranks = ranks_of(arena, unlike(), spec, 3)
    hashed = threading.Event()
    checkpoints = ranks[1].run._session.checkpoints
    take_digest = checkpoints.take_digest

    def hashing(replica, *arguments) -> None:
        take_digest(replica, *arguments)
        if replica.step == 3:
            hashed.set()

    checkpoints.take_digest = hashing

    def wrap(index, inner):
        return CutAmongCopies(inner, ranks[2], "wait", 0, hashed.wait) if index == 2 else inner

    arena.generation(ranks, wrap=wrap)
    assert checkpoints.deferred.awaits(3)
    for rank in ranks[1:]:
        rank.run.adopt_local(1, 3)
    arena.generation(ranks[1:], generation=4)
    assert_equal(ranks[1:])
    assert {rank.outcome.step for rank in ranks[1:]} == {8}
