"""The last bucket of a step."""

from __future__ import annotations

import math

import torch

from dtd.train.tail import Tail


def test_tails_add_up() -> None:
    first, second = (Tail(parameters=3, buffer_elements=2) for _ in range(2))
    first.write(loss_sum=1.5, weight=2.0, present=[True, False, True])
    second.write(loss_sum=0.5, weight=6.0, present=[True, False, False])
    first.change.copy_(torch.tensor([1.0, 2.0]))
    second.change.copy_(torch.tensor([0.5, 0.0]))
    first.memory.add(0, 7, second.memory.view)
    totals = first.totals()
    assert (totals.loss_sum, totals.weight, totals.loss) == (2.0, 8.0, 0.25)
    assert totals.present == [True, False, True]
    assert totals.change.tolist() == [1.5, 2.0]


def test_nothing_weighed_is_no_number() -> None:
    tail = Tail(parameters=1, buffer_elements=0)
    tail.write(loss_sum=0.0, weight=0.0, present=[False])
    assert math.isnan(tail.totals().loss)
