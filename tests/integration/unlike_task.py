"""A gated task whose workers compute updates that end in other bits, as unlike devices do."""

from __future__ import annotations

import os
from typing import Any

import torch
from gated_task import Gated


class Rounding(torch.optim.AdamW):
    """AdamW whose results are off by some units in the last place, by the worker's process."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        ulps = 4 + os.getpid() % 61
        for parameter in self.param_groups[0]["params"]:
            for tensor in (parameter, self.state[parameter]["exp_avg"]):
                tensor.mul_(1 + ulps * torch.finfo(tensor.dtype).eps)


class Unlike(Gated):
    def build_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return Rounding(parameters, lr=0.01)
