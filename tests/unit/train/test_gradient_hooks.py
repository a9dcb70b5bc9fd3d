"""Hooks on gradients that are not linear are refused."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from dtd.errors import TaskError
from dtd.train.optim.gradient_hooks import check_gradient_hooks

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def layer(zeros: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    if zeros:
        nn.init.zeros_(model.weight)
    return model


def tried(model: nn.Module, *, alone: bool = False, rehearse=None) -> list[str]:
    run = rehearse or (lambda: model(X).square().mean().backward())
    doubts = check_gradient_hooks(list(model.named_parameters()), run, alone=alone)
    assert all(parameter.grad is None for parameter in model.parameters())
    return doubts


def clip_to_norm(gradient, norm=0.01):
    return gradient * torch.clamp(norm / gradient.norm(), max=1.0)


def largest_half(gradient):
    return gradient * (gradient.abs() >= gradient.abs().median())


def quantised(gradient):
    return torch.round(gradient * 1000) / 1000


class Shrinking:
    def __call__(self, gradient):
        return gradient / (1 + gradient.abs())


NOT_LINEAR = {
    "clamp": lambda g: g.clamp(-0.01, 0.01),
    "clip to a norm": clip_to_norm,
    "partial": functools.partial(clip_to_norm, norm=1.0),
    "an object": Shrinking(),
    "sign": torch.sign,
    "only positive": torch.relu,
    "normalised": lambda g: g / g.norm(),
    "rows of one norm": lambda g: g / (g.norm(dim=1, keepdim=True) + 1e-12) * g.norm(),
    "largest half": largest_half,
    "decay": lambda g: g + 0.1,
    "noise": lambda g: g + 0.1 * torch.randn_like(g),
    "quantised": quantised,
    "in place": lambda g: g.clamp_(-0.01, 0.01),
}


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", NOT_LINEAR)
def test_a_hook_that_is_not_linear_is_refused_by_name(kind, zeros) -> None:
    model = layer(zeros)
    model.weight.register_hook(NOT_LINEAR[kind])
    with pytest.raises(TaskError, match="on the gradient of weight is not linear") as raised:
        tried(model)
    assert "train.clip_norm" in raised.value.remedy
    assert tried(model, alone=True) == []


def test_a_hook_that_clears_is_refused() -> None:
    model = layer()

    def clear(parameter) -> None:
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(clear)
    with pytest.raises(TaskError, match=r"gradient of weight is cleared .*clear \(test_gradient"):
        tried(model, alone=True)


def test_a_hook_with_a_memory_is_doubted() -> None:
    model, kept = layer(), torch.zeros(5, 6)
    model.weight.register_hook(lambda g: kept.mul_(0.9).add_(g).clone())
    (doubt,) = tried(model)
    assert "on the gradient of weight gives another result when it is called again" in doubt
