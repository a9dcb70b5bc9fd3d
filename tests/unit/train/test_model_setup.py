"""Activation checkpointing and precision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.train.warm_up.model_setup import Recomputation, blocks_of, loss_scaler


def recomputing(model: nn.Module) -> Recomputation:
    return Recomputation(blocks_of(model))


def test_blocks_run_twice_in_training_and_once_otherwise() -> None:
    model, calls = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), []
    model[0].register_forward_pre_hook(lambda *_: calls.append("outside"))
    inner = model[2].forward
    model[2].forward = lambda x: calls.append("inside") or inner(x)
    context = recomputing(model)
    with context:
        model(torch.ones(1, 4)).sum().backward()
    assert calls == ["outside", "inside", "inside"]
    calls.clear()
    with context, torch.no_grad():
        model(torch.ones(1, 4))
    model.eval()
    with context:
        model(torch.ones(1, 4)).sum().backward()
    model.train()
    model(torch.ones(1, 4)).sum().backward()
    assert calls == ["outside", "inside"] * 3


@pytest.mark.parametrize("in_place", [False, True])
def test_a_model_that_is_compiled_as_a_whole_is_refused(in_place: bool) -> None:
    model: nn.Module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2))
    if in_place:
        model.compile()
    else:
        model = torch.compile(model)
    with pytest.raises(TaskError, match="a model that is compiled"):
        blocks_of(model)


def test_between_steps_a_model_is_as_the_task_built_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    own = model[2].forward
    model[2].forward = own
    attributes = [dict(vars(module)) for module in model.modules()]
    context = recomputing(model)
    with context:
        first = model[0].forward
    assert [vars(module) for module in model.modules()] == attributes
    with context:
        assert model[0].forward is first
    calls: list[str] = []
    model[0].forward = lambda x: calls.append("between") or x @ model[0].weight
    with context:
        model(torch.ones(1, 4)).sum().backward()
        model[2].forward = lambda x: calls.append("inside") or x
    assert calls == ["between"] * 2
    model(torch.ones(1, 4))
    assert calls == ["between"] * 3 + ["inside"]


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
