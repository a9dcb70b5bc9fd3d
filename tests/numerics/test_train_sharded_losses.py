"""Sharded training: what happens when ranks are lost or join."""

from __future__ import annotations

import threading

import pytest
import torch

from dtd.engine.control_word import Flags
from dtd.engine.shards import NOTHING, WHOLE, united
from dtd.engine.step_protocol import FRESH
from dtd.errors import DivergenceError, RingBroken
from tests.arena import Arena, Regression
from tests.numerics.sharded_training import (
    ADAM,
    STAGES,
    assert_no_error,
    assert_same_weights,
    sharded,
)

pytestmark = pytest.mark.numerics

ENDS = pytest.mark.parametrize("stage", [1, 3])
"""Parameters that every rank has, and those that are divided; stage 2 divides gradients."""


class Dies:
    """A collective that raises in the call of this number, counted over all methods."""

    COUNTED = ("open_step", "start", "wait", "gather", "close_step")

    def __init__(self, inner, call: int) -> None:
        self._inner, self._left = inner, call
        self.died = False

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name not in self.COUNTED:
            return value
        self._left -= 1
        if self._left >= 0:
            return value

        def die(*arguments):
            self.died = True
            raise RingBroken("died by order of the test")

        return die


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A rank that has trained five steps with another one, undisturbed and replicated."""
    arena = Arena(tmp_path_factory.mktemp("whole"))
    rank, _ = arena.train(Regression(), arena.spec(job={"steps": 5}, optimizer=ADAM), 2)
    yield rank
    arena.close()


def holders(ranks, key):
    """The ranks that can make the state of this key."""
    return [rank for rank in ranks if rank.run._session.engine.can_make(key)]


def start_key(ranks):
    """The newest state of which the ranks have all parts."""
    engines = [rank.run._session.engine for rank in ranks]
    known = {key for one in engines for key in (one.live, one.prepared) if key is not None}
    for key in sorted(known, reverse=True):
        if united(rank.replica.held_part for rank in holders(ranks, key)) == WHOLE:
            return key
    raise AssertionError("no state is left")


def begin_again(arena, ranks, joiners=()) -> tuple[int, int]:
    key = start_key(ranks)
    able = holders(ranks, key)
    for rank in able:
        rank.run.adopt_local(*key)
    for rank in [*ranks, *joiners]:
        if rank not in able:
            arena.copy_state(able[0], rank)
            assert rank.replica.held_part == NOTHING
            assert rank.run.held().where == "none"
    return key


@pytest.mark.parametrize(
    ("stage", "call"),
    [
        *((1, 0), (1, 11), (1, 26), (1, 47), (2, 5), (2, 17), (2, 36)),
        *((3, 0), (3, 5), (3, 11), (3, 17), (3, 26), (3, 36), (3, 47)),
    ],
)
def test_no_step_is_lost_with_one_rank(arena, regression, whole, call, stage) -> None:
    """Whatever it does when it dies; the others go on, with a joiner or without."""
    spec = sharded(arena, stage=stage, mirrors=1, job={"steps": 5}, optimizer=ADAM)
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    joiner = ranks.pop()
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    victim = call % 3
    doomed = []

    def wrap(index, inner):
        if index != victim:
            return inner
        doomed.append(Dies(inner, call))
        return doomed[-1]

    arena.generation(ranks, wrap=wrap)
    assert doomed[0].died
    left = [rank for index, rank in enumerate(ranks) if index != victim]
    newest = max(rank.run.committed_step for rank in ranks)
    joiners = [joiner] if call % 2 else []
    key = begin_again(arena, left, joiners)
    assert key[1] >= newest
    together = [*joiners, *left]
    arena.generation(together, generation=2)
    assert_no_error(together)
    assert_same_weights(together, whole)
    for rank in left:
        assert [one.step for one in rank.recorder.steps] == list(range(1, 6))


@STAGES
def test_a_survivor_of_a_broken_regroup_still_gives_its_old_part(arena, regression, stage) -> None:
    job = {"steps": 4}
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)
    expected = arena.train(regression(), arena.spec(job=job, optimizer=ADAM), 2, job_id="whole")
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(3)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, wrap=lambda index, inner: Dies(inner, 30) if not index else inner)
    left = ranks[1:]
    parts = [rank.replica.held_part for rank in left]
    generation = 2
    for call in (0, 1, 3, 6, 9):
        begin_again(arena, left)
        arena.generation(
            left,
            generation=generation,
            wrap=lambda index, inner: Dies(inner, call) if index else inner,  # noqa: B023
        )
        assert [rank.replica.held_part for rank in left] == parts
        generation += 1
    begin_again(arena, left)
    arena.generation(left, generation=generation)
    assert_no_error(left)
    assert_same_weights(left, expected[0])


class DiesInAgreement:
    """A collective that raises in a word once all that was started before has arrived."""

    def __init__(self, inner, arrived: threading.Barrier, begin) -> None:
        self._inner, self._arrived, self._begin = inner, arrived, begin
        self._started: list[int] = []
        self._agrees = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def start(self, bucket, *done) -> None:
        self._started.append(bucket)
        self._inner.start(bucket, *done)

    def open_step(self, step, buckets) -> None:
        self._inner.open_step(step, buckets)
        self._agrees = len(buckets) > 0

    def close_step(self):
        self._started.clear()
        if not self._agrees:
            self._begin()
        return self._inner.close_step()

    def gather(self, word):
        if not self._agrees:
            return self._inner.gather(word)
        for bucket in self._started:
            self._inner.wait(bucket)
        self._arrived.wait(timeout=20.0)
        raise RingBroken("died by order of the test")


class Agrees:
    """A rank's collective that notes when the ranks have agreed on the initial state."""

    def __init__(self, inner, agreed: list[int]) -> None:
        self._inner, self._agreed = inner, agreed

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def agreed(self) -> None:
        self._agreed.append(self._inner.rank)


def after_three_steps(arena, regression, stage, mirrors: int = 1):
    """Four ranks whose first generation has ended after three steps."""
    spec = sharded(arena, stage=stage, mirrors=mirrors, optimizer=ADAM)

    def ask(step: int) -> Flags:
        return Flags(yield_=step == 2)

    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=ask) for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks)
    assert_no_error(ranks)
    for rank in ranks:
        rank.run.adopt_local(1, ranks[0].run.committed_step)
    return ranks


def held(rank):
    tensors = rank.replica.shards.tensors()
    return [piece.values.clone() for one in tensors for piece in one.pieces]


def damage(rank, kind: str = "model.") -> None:
    with torch.no_grad():
        for one in rank.replica.shards.tensors():
            if one.name.startswith(kind):
                for piece in one.pieces:
                    piece.values.add_(1.0)


@STAGES
def test_old_parameters_are_kept_until_all_have_agreed(arena, regression, stage) -> None:
    """A rank's parameters are damaged; what others hold is not overwritten before it is found."""
    ranks = after_three_steps(arena, regression, stage)
    others = ranks[1:]
    before = [held(rank) for rank in others]
    arrived = threading.Barrier(4)
    order = [ranks[0], ranks[2], ranks[1], ranks[3]]

    def wrap(index, inner) -> DiesInAgreement:
        return DiesInAgreement(inner, arrived, lambda: damage(ranks[0]) if not index else None)

    arena.generation(order, generation=2, wrap=wrap)
    assert all("by order of the test" in str(rank.error) for rank in order)
    for rank, values in zip(others, before, strict=True):
        for now, then in zip(held(rank), values, strict=True):
            assert torch.equal(now, then)


@ENDS
@pytest.mark.parametrize(
    ("kind", "entry", "meaning"),
    [
        ("model.", "model.0.weight", "the parameter 0.weight; all ranks update it"),
        ("optimizer.", "optimizer.0.exp_avg", "exp_avg in the optimizer's state of 0.weight;"),
    ],
)
def test_a_damaged_shard_is_found_before_it_moves(
    arena, regression, stage, kind, entry, meaning
) -> None:
    """Owner and mirror of the new division would both have it, and would agree."""
    ranks = after_three_steps(arena, regression, stage)
    damage(ranks[1], kind)
    before = [held(rank) for rank in ranks]
    agreed = []
    left = ranks[:3]
    arena.generation(left, generation=2, wrap=lambda _, inner: Agrees(inner, agreed))
    for rank, values in zip(left, before, strict=False):
        assert isinstance(rank.error, DivergenceError), rank.error
        assert (rank.error.step, rank.error.entry, rank.error.majority) == (3, entry, False)
        assert meaning in rank.error.message
        for now, then in zip(held(rank), values, strict=True):
            assert torch.equal(now, then)
    assert not agreed


@ENDS
def test_of_three_holders_the_damaged_one_differs(arena, regression, stage) -> None:
    ranks = after_three_steps(arena, regression, stage, mirrors=2)
    joiner = arena.start(regression(), ranks[0].run._session.spec, name="w4")
    arena.copy_state(ranks[0], joiner)
    damage(ranks[1])
    ranks.append(joiner)
    arena.generation(ranks, generation=2, voters=frozenset(range(4)))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError), rank.error
        assert (rank.error.dissenters, rank.error.majority) == ((1,), True)


@ENDS
def test_a_damaged_shard_that_stays_is_found_at_the_agreement(arena, regression, stage) -> None:
    ranks = after_three_steps(arena, regression, stage)
    damage(ranks[1])
    agreed = []
    arena.generation(ranks, generation=2, wrap=lambda _, inner: Agrees(inner, agreed))
    for rank in ranks:
        assert isinstance(rank.error, DivergenceError), rank.error
        assert rank.error.entry == "model.0.weight"
    assert not agreed, "what differs is no agreement"


def test_two_neighbours_at_once_are_one_too_many_for_one_mirror(arena, regression) -> None:
    spec = sharded(arena, mirrors=1, optimizer=ADAM)
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks, wrap=lambda index, inner: Dies(inner, 40) if not index else inner)
    left = ranks[2:]
    assert united(rank.replica.held_part for rank in left) != WHOLE
    step = min(rank.run.committed_step for rank in left)
    for rank in left:
        rank.run.adopt_local(1, step)
    arena.generation(left, generation=2)
    why = "the generation cannot start: of the sharded state, 1/4 to 1/2 of 0 to 1 is held by no"
    assert all(str(rank.error).startswith(why) for rank in left)


@STAGES
def test_members_that_join_and_leave_lose_nothing(arena, regression, stage) -> None:
    job = {"steps": 8}
    expected = arena.train(regression(), arena.spec(job=job, optimizer=ADAM), 2, job_id="whole")
    spec = sharded(arena, stage=stage, mirrors=1, job=job, optimizer=ADAM)

    def ask(step: int) -> Flags:
        return Flags(yield_=step in (2, 5))

    ranks = [arena.start(regression(), spec, name=f"w{i}", ask=ask) for i in range(2)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    arena.generation(ranks)
    joiners = [arena.start(regression(), spec, name=f"w{i}") for i in range(2, 5)]
    begin_again(arena, ranks, joiners)
    together = [*ranks, *joiners]
    arena.generation(together, generation=2)
    assert {rank.outcome.kind for rank in together} == {"yielded"}
    begin_again(arena, together[1:])
    arena.generation(together[1:], generation=3)
    assert_no_error(together[1:])
    assert_same_weights(together[1:], expected[0])


def test_a_mirror_that_differs_is_found(arena, regression) -> None:
    spec = sharded(arena, mirrors=1, optimizer=ADAM, train={"digest_every": 2})
    ranks = [arena.start(regression(), spec, name=f"w{i}") for i in range(4)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    spoilt = threading.Event()

    def spoil(step: int) -> Flags:
        if step == 4 and not spoilt.is_set():
            spoilt.set()
            values = next(
                value
                for values in ranks[2].replica.optimizer.state.values()
                for value in values.values()
                if value.dim() and value.numel()
            )
            values[0] += 1.0
        return Flags()

    ranks[2].recorder.ask = spoil
    arena.generation(ranks)
    assert "hold another state" in str(ranks[0].error)
    assert len(ranks[0].error.dissenters) >= 2
