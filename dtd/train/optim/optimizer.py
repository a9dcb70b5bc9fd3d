"""The optimizer that a job file requests.

On a CPU it is torch's fused kernel: one pass over parameter, gradient and state, for Adam in a
sixth of the time, for SGD in two thirds.  It goes through memory as it lies and does not look
whether all lie alike, and gradients lie as in a contiguous parameter; so other models
(channels_last, bfloat16) get `foreach`, a handful of kernels over all parameters, as GPUs do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dtd.job import OptimizerTable


def build_optimizer(
    table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the job's [optimizer] table."""
    params = list(parameters)
    fused = all(_may_be_fused(parameter) for parameter in params)
    if table.name == "sgd":
        return _SGD(
            params,
            lr=table.lr,
            momentum=table.momentum,
            nesterov=table.nesterov,
            weight_decay=table.weight_decay,
            fused=fused,
            foreach=not fused,
        )
    kind = _Adam if table.name == "adam" else _AdamW
    return kind(
        params,
        lr=table.lr,
        betas=(table.beta1, table.beta2),
        eps=table.eps,
        weight_decay=table.weight_decay,
        fused=fused,
        foreach=not fused,
    )


def _plain(method: Callable[..., Any]) -> Any:
    """A method of torch's optimizers without the wrappers by which its compiler steps around it.

    They import the compiler and sympy, 1.4 s of processor time in every worker's first step, for
    functions that only dtd calls, and never from compiled code.
    """
    return torch.no_grad()(inspect.unwrap(method))


class _Uncompiled(torch.optim.Optimizer):
    """Uncompiled methods of all optimizers of torch."""

    add_param_group = _plain(torch.optim.Optimizer.add_param_group)
    zero_grad = _plain(torch.optim.Optimizer.zero_grad)
    state_dict = _plain(torch.optim.Optimizer.state_dict)
    load_state_dict = _plain(torch.optim.Optimizer.load_state_dict)


class _Adam(_Uncompiled, torch.optim.Adam):
    step = _plain(torch.optim.Adam.step)


class _AdamW(_Uncompiled, torch.optim.AdamW):
    step = _plain(torch.optim.AdamW.step)


class _SGD(_Uncompiled, torch.optim.SGD):
    """SGD whose parameters need not all have their first gradient in the same step.

    torch's fused kernel wants momentum of all parameters that it updates, or of none.  Momentum
    begins with the gradient itself, which is what comes of zeros, too.
    """

    def step(self, closure: Any = None) -> Any:
        """Implement `Optimizer`; first zeroes momentum where the fused kernel needs it."""
        for group in self.param_groups:
            if not (group["fused"] and group["momentum"]):
                continue
            for parameter in group["params"]:
                if parameter.grad is not None and "momentum_buffer" not in self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return self._update(closure)

    _update = _plain(torch.optim.SGD.step)


def _may_be_fused(parameter: nn.Parameter) -> bool:
    wide = parameter.dtype in (torch.float32, torch.float64)
    return wide and parameter.device.type == "cpu" and parameter.is_contiguous()
