"""Everything that one job needs in one worker, built once and used by every generation.

The parts know nothing of each other; the loop (`dtd.train.loop`) brings them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtd.core.engine.step_protocol import StateKey, StepProtocol
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.strategy.api import Part, Strategy
from dtd.strategy.choice import build_strategy
from dtd.strategy.scalars import StepScalars
from dtd.train.callbacks import Callbacks
from dtd.train.checkpoint.first_weights import FirstWeights
from dtd.train.checkpoint.saver import Checkpoints
from dtd.train.data.loader import Loader
from dtd.train.data.sampling import order_of
from dtd.train.data.stream import InSequence, StreamRows, stream_in, stream_rows
from dtd.train.data.used_rows import UsedRows
from dtd.train.early_stop import EarlyStop, check_evaluated, why_it_ends
from dtd.train.evaluation import Evaluator
from dtd.train.model_setup import Sample, check_precision, sample_of
from dtd.train.optimizer.build import JoinedOptimizer
from dtd.train.plan import JobPlan
from dtd.train.record import CheckpointRecord, Reporter, Requests, Warn, WarningThrottle
from dtd.train.state.buffers import RunningBuffers, smallest_rows
from dtd.train.state.replica import Replica, build_replica, reset_replica
from dtd.train.state.task_state import ParameterWatch
from dtd.train.task import MapDataset, Task, eval_dataset_of, train_dataset_of
from dtd.transport.api import BucketMemory, Collective


@dataclass(slots=True, kw_only=True)
class Session:
    """One job in one worker.

    Attributes:
        spec: the job.
        task: gives loss and metrics.
        device: where the model is.
        dataset: the training rows.
        stream: the same, if they come from one.
        sample: gives a few of them as a batch.
        plan: what each step does.
        replica: the state.
        strategy: how a step's rows become an update.
        buffers: running buffers.
        watch: sees that the task leaves parameters to the optimizer.
        scalars: the last bucket of every step.
        loader: training batches.
        evaluator: None if the task has no evaluation rows.
        checkpoints: saves the state.
        reporter: hears of progress.
        warn: the reporter's `warning`, for what may come in every step.
        requests: what is asked of this rank.
        callbacks: those of the task.
        engine: which state is live, which step is under way and how far it is.
        compared: (generation, step, digest) that this rank has offered to the others last.
        metrics: of the last evaluation.
        used: rows that went through the model here in the last step.
        begins_with: a file of weights that a fresh state has; None if there is none.
        judged: what early stopping makes of the evaluation before the step at hand; None if
            there is none.
        ended: why the job ended early; empty if it did not, or not in this process.
        stream_position: where the stream stands after the step at hand.
    """

    spec: JobSpec
    task: Task
    device: torch.device
    dataset: MapDataset
    stream: StreamRows | None
    sample: Sample
    plan: JobPlan
    replica: Replica
    strategy: Strategy
    buffers: RunningBuffers
    watch: ParameterWatch
    scalars: StepScalars
    loader: Loader
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    reporter: Reporter
    warn: WarningThrottle
    requests: Requests
    callbacks: Callbacks
    engine: StepProtocol = field(default_factory=StepProtocol)
    compared: tuple[int, int, bytes] = (0, 0, b"")
    metrics: dict[str, float] = field(default_factory=dict)
    used: UsedRows = field(default_factory=UsedRows)
    judged: EarlyStop | None = None
    begins_with: FirstWeights | None = None
    ended: str = ""
    stream_position: Any = None

    @property
    def key(self) -> StateKey:
        """Of the live state."""
        live = self.engine.live
        assert live is not None, "memory holds no state"
        return live

    def exchanges(self) -> list[BucketMemory]:
        """The buckets of the step that follows the live state.

        Raises:
            TaskError: the task names updates that there are not.
        """
        names = updates_of_step(self.task, self.strategy.names, self.replica.step)
        return self.strategy.exchanges(names)

    @property
    def is_last(self) -> bool:
        """No step follows the live state."""
        total = self.plan.steps_total
        return self.replica.step >= total or self.replica.ended_of == total

    @property
    def wants_end(self) -> str:
        """Why the step at hand is to be the last one, if this worker has a reason."""
        train = self.spec.train
        stopped = why_it_ends(train, self.judged) if self.judged is not None else ""
        return stopped or self.callbacks.reason

    def open(self) -> None:
        """The next step is at hand, with the evaluation that may come before it."""
        self.engine.open()
        self.judged = None
        self.replica.own.begin()

    def begin(self, ring: Collective) -> None:
        """A step on this ring begins: remember what it may change before its commit."""
        self.strategy.begin(ring.check)
        self.buffers.take_snapshot()
        self.engine.begin(ring.generation)

    def committed(self) -> None:
        """The step at hand is applied."""
        self.engine.commit()
        self.replica.own.keep()
        self.strategy.commit()
        self.strategy.release()

    def take_back(self) -> None:
        """Undo what the step at hand has changed so far, running buffers among it."""
        self.strategy.rollback()
        self.buffers.restore()

    def discard(self) -> None:
        """Nothing of the step at hand happened, if there is one."""
        if self.engine.discard():
            self.take_back()
            self.strategy.release()
        self.replica.own.restore()

    def tell(self, name: str, metrics: Mapping[str, float], *, directory: str = "") -> None:
        """Call one of the task's callbacks about the live state.

        Raises:
            TaskError: it changed that; whatever else it raises comes out as it is.
        """
        step = self.replica.step
        epoch = self.plan.position(max(0, step - 1)).epoch
        self.callbacks.tell(name, step=step, epoch=epoch, metrics=metrics, directory=directory)

    def reset(self) -> None:
        """Make the live state the fresh one."""
        reset_replica(self.replica, self.task, self.spec, self.device, self.sample)
        if self.begins_with is not None:
            self.begins_with.give(self.replica)
        self._rewind()

    def _rewind(self) -> None:
        if self.stream is not None:
            first = self.replica.step * self.spec.job.global_batch_size
            self.stream.go_to(first, self.replica.stream)

    def replaced(self, key: StateKey) -> None:
        """The live state is another one now: what was found out about the old one is void."""
        self.engine.replaced(key)
        self.strategy.replaced()
        self._rewind()
        self.plan = self.plan.following(self.replica.ledger)
        self.metrics, self.ended, self.callbacks.reason = {}, "", ""
        self.checkpoints.drop()

    def close(self) -> None:
        """Leave nothing running."""
        self.loader.close()
        if self.evaluator is not None:
            self.evaluator.close()
        self.strategy.close()
        self.checkpoints.close()


def build_session(
    *,
    spec: JobSpec,
    job_id: str,
    identity: str,
    task: Task,
    device: torch.device,
    checkpoint_directory: Path,
    reporter: Reporter,
    requests: Requests,
) -> Session:
    """Build the model, open the data, lay out the buckets.

    Raises:
        TaskError: the task, its data or the job's choices do not work here.
    """
    check_precision(spec.train.precision, device)
    dataset = train_dataset_of(task, partial(stream_rows, task, spec))
    eval_dataset, stream = eval_dataset_of(task), stream_in(dataset)
    sample = sample_of(dataset, spec, device)
    job = spec.job
    order = (
        InSequence(job.global_batch_size)
        if stream is not None
        else order_of(task, len(dataset), batch_rows=job.global_batch_size, seed=job.seed)
    )
    replica = build_replica(task, spec, device, epoch_rows=order.places, sample=sample)
    plan = JobPlan(spec=spec, order=order, smallest_rows=smallest_rows(replica.model))
    plan.check_slices()
    check_evaluated(spec.train, has_evaluation=eval_dataset is not None)
    buffers, callbacks = RunningBuffers(replica.model), Callbacks(task, replica)
    warn = WarningThrottle(reporter.warning)
    scalars = StepScalars(
        parameters=len(replica.trained),
        buffer_elements=buffers.elements,
        buffer_words=buffers.words,
    )
    return Session(
        spec=spec,
        task=task,
        device=device,
        dataset=dataset,
        stream=stream,
        sample=sample,
        plan=plan,
        replica=replica,
        strategy=build_strategy(spec, parts_of(replica), device, scalars),
        buffers=buffers,
        watch=ParameterWatch(replica.model, reporter.progress),
        scalars=scalars,
        loader=_open_loader(spec, dataset, device, warn),
        evaluator=Evaluator(task, eval_dataset, spec, device, warn=warn) if eval_dataset else None,
        checkpoints=Checkpoints(
            spec=spec,
            job_id=job_id,
            identity=identity,
            directory=checkpoint_directory,
            reporter=reporter,
            saved=partial(_tell_saved, callbacks, plan),
        ),
        reporter=reporter,
        warn=warn,
        requests=requests,
        callbacks=callbacks,
    )


def parts_of(replica: Replica) -> list[Part]:
    """The parameters of each of the replica's optimizers, in their order."""
    optimizer, trained = replica.optimizer, replica.trained
    if not isinstance(optimizer, JoinedOptimizer):
        return [Part(name="", named=trained, places=range(len(trained)))]
    place_of = {parameter: place for place, (_, parameter) in enumerate(trained)}
    parts = []
    for name, part in optimizer.parts.items():
        places = sorted(place_of[p] for group in part.param_groups for p in group["params"])
        named = [trained[place] for place in places]
        parts.append(Part(name=name, named=named, places=places))
    return parts


def updates_of_step(task: Any, names: Sequence[str], step: int) -> list[str]:
    """The updates that a step makes, in order.

    Args:
        task: with `updates(step)`, or all are made in every step.
        names: of all there are.
        step: committed steps before it.

    Raises:
        TaskError: the task names none, one twice, or one that there is not.
    """
    choose: Callable[[int], Sequence[str]] | None = getattr(task, "updates", None)
    chosen = list(choose(step)) if choose is not None and len(names) > 1 else list(names)
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(names):
        raise TaskError(
            f"updates({step}) of the task returned {chosen!r}",
            remedy=f"return some of {', '.join(names)}, each once at most, in order",
        )
    return chosen


def _tell_saved(callbacks: Callbacks, plan: JobPlan, record: CheckpointRecord) -> None:
    """A checkpoint was published here: tell the task."""
    callbacks.tell(
        "on_checkpoint",
        step=record.step,
        epoch=plan.position(max(0, record.step - 1)).epoch,
        metrics=record.metrics,
        directory=record.directory,
    )


def _open_loader(spec: JobSpec, dataset: MapDataset, device: torch.device, warn: Warn) -> Loader:
    return Loader(
        dataset,
        seed=spec.job.seed,
        loader_workers=spec.train.loader_workers,
        device=str(device),
        warn=warn,
    )
