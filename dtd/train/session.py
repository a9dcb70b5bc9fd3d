"""Everything that one job needs in one worker, built once and used by every generation.

The parts know nothing of each other; the loop (`dtd.train.loop`) brings them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtd.core.engine.step_protocol import StateKey, StepProtocol
from dtd.job import JobSpec
from dtd.train.buffers import RunningBuffers, smallest_rows
from dtd.train.callbacks import Callbacks
from dtd.train.checkpoints import Checkpoints
from dtd.train.data import Loader
from dtd.train.early_stop import EarlyStop, check_evaluated, why_it_ends
from dtd.train.evaluation import Evaluator
from dtd.train.first_weights import FirstWeights
from dtd.train.lazy import Sample, sample_of
from dtd.train.parameter_watch import ParameterWatch
from dtd.train.plan import JobPlan
from dtd.train.precision import check_precision
from dtd.train.record import CheckpointRecord, Reporter, Requests
from dtd.train.replica import Replica, build_replica, reset_replica
from dtd.train.sampling import order_of
from dtd.train.seldom import Seldom, Warn
from dtd.train.stream import InSequence, StreamRows, stream_in, stream_rows
from dtd.train.tail import Tail
from dtd.train.task import MapDataset, Task, eval_dataset_of, train_dataset_of
from dtd.train.updates import (
    Applied,
    Undo,
    Update,
    attend_to,
    build_updates,
    updates_of_step,
)
from dtd.train.used_rows import UsedRows
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
        updates: one, or one for each optimizer of the task.
        buffers: running buffers.
        watch: sees that the task leaves parameters to the optimizer.
        tail: the last bucket.
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
        applied: updates of the step at hand that are made, tentatively.
        undos: what takes them back.
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
    updates: list[Update]
    buffers: RunningBuffers
    watch: ParameterWatch
    tail: Tail
    loader: Loader
    evaluator: Evaluator | None
    checkpoints: Checkpoints
    reporter: Reporter
    warn: Seldom
    requests: Requests
    callbacks: Callbacks
    engine: StepProtocol = field(default_factory=StepProtocol)
    compared: tuple[int, int, bytes] = (0, 0, b"")
    metrics: dict[str, float] = field(default_factory=dict)
    used: UsedRows = field(default_factory=UsedRows)
    judged: EarlyStop | None = None
    begins_with: FirstWeights | None = None
    ended: str = ""
    applied: list[Applied] = field(default_factory=list)
    undos: list[Undo] = field(default_factory=list)
    stream_position: Any = None
    _active: tuple[int, list[Update]] = (-1, [])

    @property
    def key(self) -> StateKey:
        """Of the live state."""
        live = self.engine.live
        assert live is not None, "memory holds no state"
        return live

    @property
    def active(self) -> list[Update]:
        """The updates of the step that follows the live state."""
        if self._active[0] != self.replica.step:
            step = self.replica.step
            self._active = (step, updates_of_step(self.task, self.updates, step))
        return self._active[1]

    @property
    def memories(self) -> list[BucketMemory]:
        """A step's buckets: for each update its gradients, then a tail; the last one is `tail`."""
        memories: list[BucketMemory] = []
        for update in self.active:
            memories += [*update.memories, update.tail.memory]
        return [*memories[:-1], self.tail.memory]

    def recall(self) -> None:
        """A generation begins: whoever is left in an older one reads the buckets in vain."""
        for update in self.updates:
            update.gradients.recall()

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
        for update in self.active:
            update.gradients.begin(ring.check)
        self.buffers.take_snapshot()
        self.engine.begin(ring.generation)

    def committed(self) -> None:
        """The step at hand is applied."""
        self.engine.commit()
        self.replica.own.keep()
        self._end()

    def take_back(self) -> None:
        """Undo what the step at hand has changed so far: tentative updates and running buffers."""
        while self.undos:
            self.undos.pop().restore()
        self.buffers.restore()

    def discard(self) -> None:
        """Nothing of the step at hand happened, if there is one."""
        if self.engine.discard():
            self.take_back()
            self._end()
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
        self._rewind()
        self.plan = self.plan.following(self.replica.ledger)
        self.metrics, self.ended, self.callbacks.reason = {}, "", ""
        self.checkpoints.drop()

    def _end(self) -> None:
        self.applied, self.undos = [], []
        attend_to(None, self.updates)
        for update in self.updates:
            update.gradients.release()

    def close(self) -> None:
        """Leave nothing running."""
        self.loader.close()
        if self.evaluator is not None:
            self.evaluator.close()
        for update in self.updates:
            update.gradients.close()
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
    warn = Seldom(reporter.warning)
    return Session(
        spec=spec,
        task=task,
        device=device,
        dataset=dataset,
        stream=stream,
        sample=sample,
        plan=plan,
        replica=replica,
        updates=build_updates(replica, spec, device),
        buffers=buffers,
        watch=ParameterWatch(replica.model, reporter.progress),
        tail=Tail(
            parameters=len(replica.trained),
            buffer_elements=buffers.elements,
            buffer_words=buffers.words,
        ),
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
