"""The pieces of a step that need no ring."""

from __future__ import annotations

import pytest
import torch

from dtd.errors import TaskError
from dtd.train.step import _understand


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
