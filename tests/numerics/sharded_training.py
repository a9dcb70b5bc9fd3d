"""Jobs with a sharded state, and what is compared of them."""

from __future__ import annotations

import pytest
import torch

from dtd.engine.shards import WHOLE, united

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
ADAM = {"name": "adam", "lr": 0.01}


def sharded(arena, *, mirrors: int, stage: int = 1, **tables):
    strategy = {"name": "sharded", "mirrors": mirrors, "stage": stage}
    strategy |= tables.pop("strategy", {})
    return arena.spec(strategy=strategy, **tables)


def assert_same_weights(got, expected) -> None:
    """To rounding: the ring adds in another order than an exchange of whole buckets.

    In stage 3 a rank has only its part of the weights.
    """
    whole = {f"model.{name}": value.detach() for name, value in expected.model.named_parameters()}
    for rank in got:
        for one in rank.replica.shards.tensors():
            for piece in one.pieces if one.name in whole else ():
                theirs = whole[one.name].reshape(-1)[piece.start : piece.stop]
                torch.testing.assert_close(piece.values, theirs, rtol=1e-9, atol=1e-12)
        if rank.run._session.strategy.divides_parameters:
            continue
        for mine, theirs in zip(rank.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    assert united(rank.replica.held_part for rank in got) == WHOLE


def assert_no_error(ranks) -> None:
    for rank in ranks:
        if rank.error is not None:
            raise rank.error
