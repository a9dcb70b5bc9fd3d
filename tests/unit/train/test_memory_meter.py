"""The memory that forward and backward use, at its peak."""

from __future__ import annotations

import torch
from torch import nn

from dtd.train.memory.measured import activation_peak


def test_the_peak_on_a_cpu_is_what_is_saved_for_backward_at_once():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    with activation_peak(model, torch.device("cpu")) as peak:
        for rows in (8, 64, 16):
            model(torch.zeros(rows, 4)).sum().backward()
    # the input and the outputs of all three tanh, of the largest batch; weights are not counted
    assert peak == [4 * 64 * 4 * 4]
