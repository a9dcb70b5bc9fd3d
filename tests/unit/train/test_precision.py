"""Autocast and the loss scaler."""

from __future__ import annotations

import pytest
import torch

from dtd.errors import TaskError
from dtd.train.model_setup import check_precision, loss_scaler

CPU = torch.device("cpu")


def test_float16_is_refused_on_a_cpu_with_a_remedy() -> None:
    with pytest.raises(TaskError, match=r'needs a CUDA device.*set train.precision to "bfloat16"'):
        check_precision("float16", CPU)
    check_precision("float16", torch.device("cuda"))
    check_precision("bfloat16", CPU)


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
