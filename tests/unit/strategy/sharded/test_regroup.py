"""Ranks' reports of their parts when a generation begins, and the refusal of nonsense."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from dtd.engine.digests import Shared
from dtd.engine.shards import NOTHING, WHOLE, ShardSet
from dtd.errors import RingBroken, UnreadableWord
from dtd.exchange.schedule.buckets import plan_buckets
from dtd.strategy.buckets import parameter_shapes
from dtd.strategy.sharded.parameters import FlatParameters
from dtd.strategy.sharded.regroup import regroup
from dtd.strategy.sharded.state import ShardedState
from tests.shards import held_shards


class OneRank:
    """The first rank of a ring whose other ranks say what the test lets them."""

    rank = 0

    def __init__(self, *others) -> None:
        self._others = others
        self.steps: list[int] = []

    def open_step(self, step, buckets) -> None:
        self.steps.append(step)
        self.buckets = list(buckets)

    def gather(self, word: bytes) -> list[bytes]:
        return [word, *(other(word) for other in self._others)]

    def start(self, bucket, done=None) -> None:
        assert bucket < len(self.buckets)

    def wait(self, bucket) -> None:
        """Others have sent nothing but sevens."""
        memory = self.buckets[bucket]
        start, stop = (one * memory.shape.item_bytes for one in memory.shape.bounds[:2])
        sevens = torch.full((len(memory.view) // 4,), 7.0)
        memory.view[start:stop] = sevens.view(torch.uint8).numpy().tobytes()[start:stop]

    def close_step(self) -> None:
        pass


def state_of(holds: ShardSet) -> tuple[ShardedState, nn.Linear]:
    model = nn.Linear(8, 1, bias=False)
    plan = plan_buckets(
        parameter_shapes([("weight", model.weight)]), bucket_bytes=64, first_bucket_bytes=64
    )
    state = ShardedState(
        ["weight"], [model.weight], plan, FlatParameters([model.weight], plan, model).flats
    )
    state.bind(torch.optim.SGD(model.parameters(), lr=0.1), holds)
    return state, model


def halves(rank: int, held: ShardSet) -> list[ShardSet]:
    del held
    return [held_shards(rank, 2, 0)]


def never(shared) -> None:
    raise AssertionError(f"no two ranks hold {shared}")


def saying(holds: ShardSet):
    return lambda word: word[:16] + json.dumps(holds.to_wire()).encode()


def test_what_several_ranks_hold_is_compared_before_it_moves() -> None:
    state, _ = state_of(WHOLE)
    asked = []

    def differ(shared) -> None:
        asked.append(shared)
        raise RingBroken("holders differ")

    def wanted(rank: int, held: ShardSet) -> list[ShardSet]:
        del held
        return [held_shards(rank, 3, 0)]

    with pytest.raises(RingBroken, match="holders differ"):
        regroup(state, OneRank(saying(WHOLE), saying(NOTHING)), 0, wanted, differ)
    assert asked == [(Shared(part=held_shards(2, 3, 0), holders=(0, 1)),)]
    assert state.sliced == state.holds == WHOLE


@pytest.mark.parametrize(
    ("other", "error", "why"),
    [
        (saying(held_shards(0, 2, 0)), RingBroken, "0 to 1/2 of 0 to 1 is held by no member"),
        (lambda word: b"x" * 16 + word[16:], RingBroken, "keep different entries"),
        (lambda word: word[:16] + b"[1", UnreadableWord, "rank 1: held shards"),
        (lambda word: word[:16] + b"[true]", UnreadableWord, "no list of integers"),
        (lambda word: word[:16] + b"[0, 1, 2, 1]", UnreadableWord, "a set of shards"),
        (lambda word: word[:16] + b"[0, 1]", UnreadableWord, "a set of shards"),
    ],
    ids=["a hole", "entries", "json", "types", "bounds", "count"],
)
def test_ranks_that_cannot_continue_say_why_and_keep_what_they_hold(other, error, why) -> None:
    part = held_shards(0, 2, 0)
    state, _ = state_of(WHOLE)
    state.load({"model.weight": [(0, 8, torch.zeros(8))]}, part)
    with pytest.raises(error, match=why):
        regroup(state, OneRank(other), 0, halves, never)
    assert state.sliced == part
