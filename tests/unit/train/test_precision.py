"""Autocast and the loss scaler."""

from __future__ import annotations

import pytest
import torch

from dtd.errors import TaskError
from dtd.train.model_setup import autocast, check_precision, loss_scaler

CPU = torch.device("cpu")


def test_float16_is_refused_on_a_cpu_with_a_remedy() -> None:
    with pytest.raises(TaskError, match=r'needs a CUDA device.*set train.precision to "bfloat16"'):
        check_precision("float16", CPU)
    check_precision("float16", torch.device("cuda"))
    check_precision("bfloat16", CPU)


def test_only_float16_scales() -> None:
    scaler = loss_scaler("bfloat16")
    scaler.update(finite=False)
    assert (scaler.scale, scaler.good_steps) == (1.0, 0)
    assert loss_scaler("float16").scale > 1.0


def test_the_scale_halves_after_overflow_and_doubles_after_a_long_time() -> None:
    scaler = loss_scaler("float16")
    begun = scaler.scale
    for _ in range(1999):
        scaler.update(finite=True)
    assert scaler.scale == begun
    scaler.update(finite=True)
    assert (scaler.scale, scaler.good_steps) == (2 * begun, 0)
    scaler.update(finite=True)
    scaler.update(finite=False)
    assert (scaler.scale, scaler.good_steps) == (begun, 0)


def test_the_scale_has_bounds() -> None:
    scaler = loss_scaler("float16")
    for _ in range(100):
        scaler.update(finite=False)
    assert scaler.scale == 1.0
    scaler.scale, scaler.good_steps = 2.0**24, 1999
    scaler.update(finite=True)
    assert scaler.scale == 2.0**24


def test_autocast_narrows_the_forward_only() -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    with autocast("bfloat16", CPU):
        out = torch.ones(1, 2) @ weight
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert weight.grad.dtype == torch.float32
    with autocast("float32", CPU):
        assert (torch.ones(1, 2) @ weight).dtype == torch.float32
