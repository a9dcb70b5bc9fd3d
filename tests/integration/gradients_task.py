"""A gated task with hooks on gradients, a `collate` that leaves rows out or an odd optimizer."""

from __future__ import annotations

from typing import Any

import torch
from gated_task import Gated
from torch import Tensor, nn


class Remembering(torch.optim.Optimizer):
    """SGD by the last two gradients, kept in a list; the learning rate is a tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": torch.tensor(0.05)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        group = self.param_groups[0]
        for parameter in group["params"]:
            last = self.state[parameter].setdefault("last", [])
            self.state[parameter]["last"] = [*last[-1:], parameter.grad.clone()]
            for gradient in self.state[parameter]["last"]:
                parameter.sub_(gradient * group["lr"])


class Hooked(Gated):
    def __init__(self, *, kind: str, **gated: Any) -> None:
        super().__init__(**gated)
        self._kind = kind
        if kind == "nested":
            self.build_optimizer = Remembering

    def build_model(self) -> nn.Module:
        model = super().build_model()
        weight: Any = model.get_parameter("0.weight")
        if self._kind == "clamp":
            weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
        if self._kind == "clears":
            weight.register_post_accumulate_grad_hook(clear)
        if self._kind == "mask":
            weight.register_hook(lambda gradient: gradient * (torch.arange(16) % 2))
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(model, batch)
        return loss * float("nan") if self._kind == "nan" else loss


def clear(parameter: nn.Parameter) -> None:
    parameter.grad = None
