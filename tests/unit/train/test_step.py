"""The pieces of a step that need no ring."""

from __future__ import annotations

import pytest
import torch

from dtd.errors import TaskError
from dtd.train.step import _understand, draw_key, seed_draws


def test_draws_are_keyed_by_seed_step_and_first_row_only() -> None:
    keys = {draw_key(seed, step, row) for seed in (0, 1) for step in (0, 1) for row in (0, 64)}
    assert len(keys) == 8
    assert all(0 <= key < 1 << 63 for key in keys)
    assert draw_key(5, 6, 7) == draw_key(5, 6, 7)


def test_seeding_repeats_dropout() -> None:
    def draw(key: int) -> torch.Tensor:
        seed_draws(key, torch.device("cpu"))
        return torch.nn.functional.dropout(torch.ones(100))

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_what_a_loss_may_be() -> None:
    loss = torch.ones(3, requires_grad=True).sum()
    assert _understand(loss, 5) == (loss, 5.0, True)
    assert _understand((loss, 7), 5) == (loss, 7.0, False)
    assert _understand((loss, torch.tensor(2.5)), 5) == (loss, 2.5, False)


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (3.0, "returned float"),
        (torch.ones(2, requires_grad=True), "returned Tensor"),
        ((torch.ones(1, requires_grad=True), 1, 1), "returned tuple"),
        (None, "returned NoneType"),
        (torch.ones(()), "does not depend on any trained parameter"),
    ],
)
def test_what_it_may_not_be(returned, why) -> None:
    with pytest.raises(TaskError, match=why):
        _understand(returned, 5)
