"""One pass over a few rows, to see how a model uses its parameters, and whether it can at all.

Where they are gathered while it runs, they must be asked for before that; with `strategy.stage = 3`
all ranks gather in the order of this pass, of forward and backward.  Hooks on gradients are tried
with its gradients (`dtd.train.gradient_hooks`).  Running buffers and random generators are put
back; the caller releases gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from dtd.job import JobSpec
from dtd.train.data.rows import kept_random_state
from dtd.train.model_setup import Sample, autocast
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica
from dtd.train.state.structure import Structure


def rehearse(
    task: Any,
    replica: Replica,
    buffers: RunningBuffers,
    sample: Sample,
    spec: JobSpec,
    device: torch.device,
    structure: Structure,
    *,
    backward: bool,
) -> None:
    """Compute the loss of a sample, or each optimizer's, and, if wanted, its gradients.

    Args:
        task: the job's.
        replica: its model and optimizers.
        buffers: the model's.
        sample: gives the rows.
        spec: the job.
        device: the model's.
        structure: the model before this; listing its parameters here would gather them.
        backward: whether gradients are wanted.

    Raises:
        TaskError: it changes what the model consists of.
        Exception: whatever the task raises.
    """
    batch = sample()
    buffers.take_snapshot()
    try:
        with kept_random_state(), replica.own.unchanged("loss()"), replica.recomputation:
            for update in replica.update_names:
                with autocast(spec.train.precision, device):
                    returned: Any = task.loss(replica.model, batch, *filter(None, [update]))
                structure.check("loss()")
                loss: Any = returned[0] if isinstance(returned, tuple) else returned
                if backward:
                    (loss * replica.scaler.scale).backward()
    finally:
        buffers.restore()
