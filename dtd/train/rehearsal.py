"""One pass over a few rows, to see how a model uses its parameters, and whether it can at all.

Where they are gathered while it runs, they must be asked for before that; with `strategy.stage = 3`
all ranks gather in the order of this pass, of forward and backward.  Nothing of it is kept:
gradients, running buffers and random generators are put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtd.job import JobSpec
from dtd.train.data.rows import kept_random_state
from dtd.train.model_setup import Sample, autocast
from dtd.train.optimizer.build import JoinedOptimizer
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica


def rehearse(
    task: Any,
    replica: Replica,
    buffers: RunningBuffers,
    sample: Sample,
    spec: JobSpec,
    device: torch.device,
    *,
    backward: bool,
) -> None:
    """Compute the loss of a sample and, if wanted, its gradients; of several, all losses.

    Raises:
        Whatever the task raises.
    """
    batch = sample()
    buffers.take_snapshot()
    try:
        with kept_random_state(), replica.own.unchanged("loss()"):
            for update in _updates(replica):
                with autocast(spec.train.precision, device):
                    returned: Any = task.loss(replica.model, batch, *update)
                loss: Any = returned[0] if isinstance(returned, tuple) else returned
                if backward:
                    loss.backward()
    finally:
        buffers.restore()


def _updates(replica: Replica) -> Sequence[tuple[str, ...]]:
    """What `loss` is told besides model and batch, once for each optimizer."""
    optimizer = replica.optimizer
    return [(name,) for name in optimizer.parts] if isinstance(optimizer, JoinedOptimizer) else [()]
