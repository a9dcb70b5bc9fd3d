"""Passes over a few rows each, to see how a model uses its parameters, and whether it can at all.

Where they are gathered while it runs, they must be asked for before that; with `strategy.stage = 3`
all ranks gather in the order of the first pass, of forward and backward, and the others show
whether the order depends on rows or on chance.  Hooks on gradients are tried with the gradients of
a pass (`dtd.train.gradient_hooks`), and layers with a single row (`dtd.train.single_rows`).
Running buffers and random generators are put back; the caller releases gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dtd.job import JobSpec
from dtd.train.data.rows import NO_STEP, draw_key, kept_random_state, seed_generators
from dtd.train.model_setup import Sample, autocast
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica
from dtd.train.state.structure import Structure
from dtd.train.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The passes of one job.

    Attributes:
        task: has the loss.
        replica: its model and optimizers.
        buffers: the model's.
        spec: the job.
        device: the model's.
    """

    task: Task
    replica: Replica
    buffers: RunningBuffers
    spec: JobSpec
    device: torch.device

    def run(self, sample: Sample, structure: Structure, *, backward: bool, number: int = 0) -> None:
        """Compute the loss of a sample, or each optimizer's, and, if wanted, its gradients.

        Args:
            sample: gives the rows.
            structure: the model before this; listing its parameters here would gather them.
            backward: whether gradients are wanted.
            number: of the pass, which keys its random draws.

        Raises:
            TaskError: the loss changes the model's structure.
            Exception: whatever the task raises.
        """
        task: Any = self.task
        replica, key = self.replica, draw_key(self.spec.job.seed, NO_STEP, number)
        batch = sample()
        self.buffers.take_snapshot()
        try:
            with kept_random_state(), replica.own.unchanged("loss()"), replica.recomputation:
                for update in replica.update_names:
                    seed_generators(key, self.device)
                    with autocast(self.spec.train.precision, self.device):
                        returned = task.loss(replica.model, batch, *filter(None, [update]))
                    structure.check("loss()")
                    loss: Any = returned[0] if isinstance(returned, tuple) else returned
                    if backward:
                        (loss * replica.scaler.scale).backward()
        finally:
            self.buffers.restore()
