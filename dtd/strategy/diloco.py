"""DiLoCo: local steps, and an outer optimizer that uses their mean change as its gradient.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
(arXiv:2311.08105).  Workers take H inner steps (AdamW in the paper) as in
`dtd.strategy.local_sgd`; the mean change d of a round is then the "outer gradient" of SGD with
Nesterov's momentum, as in torch.optim.SGD(nesterov=True):

    v <- m v + d                 m: outer momentum, 0.9 in the paper
    x <- x - a (d + m v)         a: outer learning rate, 0.7 in the paper

The result is not the mean of the ranks' weights, so BatchNorm's statistics are measured for it; see
`dtd.strategy.local_sgd`.  v is shared state: equal on all ranks, part of digests and checkpoints,
and sent to joining workers.  With a = 1 and m = 0 this is local SGD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class Nesterov:
    """The outer optimizer; see `dtd.strategy.local_sgd.Outer`.

    Args:
        named: names and parameters.
        lr: outer learning rate.
        momentum: outer momentum.

    Attributes:
        risk: the strategy's risk for a job, as a phrase for its user.
        leaves_mean: whether the weights become others than the mean of the ranks' weights.
    """

    risk = (
        "ranks' weights differ between exchanges, which an outer rate applies; begin with"
        " replicated steps (local_start_step), check the loss"
    )

    def __init__(
        self, named: Sequence[tuple[str, nn.Parameter]], *, lr: float, momentum: float
    ) -> None:
        self._lr, self._momentum = lr, momentum
        self.leaves_mean = (lr, momentum) != (1.0, 0.0)
        self.shared: Mapping[str, Tensor] = {
            f"outer_momentum.{name}": torch.zeros_like(parameter, requires_grad=False)
            for name, parameter in named
        }

    def update(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Implement `Outer`."""
        velocities = list(self.shared.values())
        torch._foreach_mul_(velocities, self._momentum)
        torch._foreach_add_(velocities, list(means))
        torch._foreach_add_(list(parameters), list(means), alpha=-self._lr)
        torch._foreach_add_(list(parameters), velocities, alpha=-self._lr * self._momentum)

    def look_ahead(self, parameters: Sequence[nn.Parameter], means: Sequence[Tensor]) -> None:
        """Implement `Outer`; the two equations in one, x - a ((1 + m) d + m^2 v)."""
        velocities = list(self.shared.values())
        lr, momentum = self._lr, self._momentum
        torch._foreach_add_(list(parameters), list(means), alpha=-lr * (1.0 + momentum))
        torch._foreach_add_(list(parameters), velocities, alpha=-lr * momentum**2)
