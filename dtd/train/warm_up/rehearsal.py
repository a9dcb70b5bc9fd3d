"""Passes over a few rows and a first evaluation, before training begins: what fails, fails now.

Where parameters are gathered while the model runs, they must be asked for before that; with
`strategy.stage = 3` all ranks gather in the order of the first pass, and further passes show
whether the order depends on rows or on chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dtd.checkpoint.format import Progress
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED_STAGES
from dtd.strategy.sharded.optimizers import check_complete, check_shardable
from dtd.train.data.rows import NO_STEP, draw_key, kept_random_state, seed_generators
from dtd.train.evaluation import Evaluator, check_named
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica
from dtd.train.task import Task
from dtd.train.warm_up.model_checks import check_memory
from dtd.train.warm_up.model_setup import Sample, autocast
from dtd.train.warm_up.watch import ParameterWatch, Structure


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The passes of one job."""

    task: Task
    replica: Replica
    buffers: RunningBuffers
    spec: JobSpec
    device: torch.device

    @property
    def can_run(self) -> bool:
        """Whether there are any: a loop of its own runs forward for its own batches only."""
        return getattr(self.task, "can_rehearse", True)

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
        if not self.can_run:
            return
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

    def check_divisible(self) -> None:
        """Refuse a job whose state cannot be divided among ranks.

        Raises:
            TaskError: its loop is one's own, its optimizer is not elementwise or lacks parameters,
                or parameters share memory.
        """
        if not self.can_run:
            raise TaskError(
                'strategy.name = "sharded" gives each rank parts of the gradients, and a loop of'
                " one's own may look at whole ones between backward() and optimizer.step()",
                remedy='use name = "replicated", or write the loop as a task (docs/tasks.md)',
            )
        replica = self.replica
        check_shardable(replica.optimizer, self.device)
        check_memory(replica.model, [parameter for _, parameter in replica.trained])
        if self.spec.strategy.stage == max(SHARDED_STAGES):
            check_complete(replica.optimizer, replica.trained)


def try_evaluation(
    evaluator: Evaluator | None,
    replica: Replica,
    buffers: RunningBuffers,
    watch: ParameterWatch,
    spec: JobSpec,
    progress: Progress,
) -> None:
    """Evaluate `train.sanity_batches` batches, and discard the figures.

    An error in the evaluation would otherwise fail the job at its end.  Random generators, running
    buffers and the task's own state are restored.

    Raises:
        TaskError: metrics are malformed, or one that the job names is missing.  Other exceptions
            of the task pass through.
    """
    batches = spec.train.sanity_batches
    if evaluator is None or not batches:
        return
    buffers.take_snapshot()
    try:
        with kept_random_state(), replica.own.unchanged("the evaluation"):
            found = evaluator.evaluate_some(replica.model, batches=batches, progress=progress)
        watch.structure.check("the evaluation")
    except TaskError as error:
        raise TaskError(
            f"{error.message} (found by evaluating {batches} batches before training)",
            remedy=error.remedy,
        ) from error
    finally:
        buffers.restore()
    check_named(spec, found)
