"""Everything that one job needs in one worker, built once and used by every generation.

The parts do not depend on each other; the loop (`dtd.train.loop`) combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from dtd.checkpoint.format import JobFolder
from dtd.engine.shares import Pace
from dtd.engine.step_protocol import StateKey, StepProtocol
from dtd.errors import TaskError
from dtd.exchange.api import BucketMemory, Collective
from dtd.host.process_memory import mapped_blocks
from dtd.job import JobSpec
from dtd.job.strategy_table import SHARDED, SPARSE
from dtd.strategy.api import Part, Strategy
from dtd.strategy.choice import build_strategy
from dtd.strategy.scalars import StepScalars
from dtd.train.callbacks import Callbacks
from dtd.train.data.loader import Loader
from dtd.train.data.rows import UsedRows, seed_generators
from dtd.train.data.sampling import Order, order_of
from dtd.train.data.stream import InSequence, StreamRows, stream_in, stream_rows
from dtd.train.evaluation import EarlyStop, Evaluator, check_evaluated, why_it_ends
from dtd.train.memory.calculated import check_room, state_size
from dtd.train.memory.measured import MemoryMeter
from dtd.train.optim.gradient_hooks import check_gradient_hooks
from dtd.train.optim.task_optimizer import JoinedOptimizer
from dtd.train.plan import JobPlan
from dtd.train.profile import StepProfiler
from dtd.train.record import Reporter, Warn, WarningThrottle
from dtd.train.state.buffers import RunningBuffers
from dtd.train.state.replica import Replica, build_replica, reset_replica
from dtd.train.state.saver import Checkpoints
from dtd.train.state.tensors import metadata
from dtd.train.task import MapDataset, Task, eval_dataset_of, train_dataset_of
from dtd.train.warm_up.model_checks import SingleRow, check_tensors, smallest_rows
from dtd.train.warm_up.model_setup import Sample, check_precision, one_row_of, samples_of
from dtd.train.warm_up.rehearsal import Rehearsal
from dtd.train.warm_up.watch import ParameterWatch, Structure

_MOST_RANKS: Final = 1024
"""Most ranks for which a model is tried, where parameters are divided later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The data of a job.

    Attributes:
        samples: return a few rows as a batch.
        evaluator: None if the task has no evaluation rows.
    """

    training: MapDataset
    stream: StreamRows | None
    loader: Loader
    order: Order
    samples: Sequence[Sample]
    one_row: Sample
    evaluator: Evaluator | None

    def close(self) -> None:
        self.loader.close()
        if self.evaluator is not None:
            self.evaluator.close()


@dataclass(slots=True, kw_only=True)
class JobSession:
    """One job in one worker.

    Attributes:
        single: finds out whether the model can train on one row.
        scalars: the last bucket of every step.
        warn: the reporter's `warning`, throttled for warnings that may occur in every step.
        doubts: (event, message) of what is allowed and hardly meant.
        engine: tracks which state is live, and the progress of the current step.
        used: rows that this rank's model processed in the last step.
        begin_with: gives a fresh state its weights; None: it keeps those of `build_model`.
        judged: early stopping's result of the evaluation before the current step; None if
            there was none.
        ended: why the job ended early; empty if it did not, or not in this process.
        stream_position: position of the stream after the current step.
        servers: how many of the last ranks of the present generation are parameter servers, which
            train and evaluate no rows.
        pace: how fast this rank has computed its rows, in any generation.
    """

    spec: JobSpec
    task: Task
    device: torch.device
    data: Data
    plan: JobPlan
    single: SingleRow
    replica: Replica
    strategy: Strategy
    buffers: RunningBuffers
    watch: ParameterWatch
    scalars: StepScalars
    checkpoints: Checkpoints
    reporter: Reporter
    warn: WarningThrottle
    callbacks: Callbacks
    memory: MemoryMeter
    doubts: list[tuple[str, str]]
    engine: StepProtocol = field(default_factory=StepProtocol)
    metrics: dict[str, float] = field(default_factory=dict)
    used: UsedRows = field(default_factory=UsedRows)
    judged: EarlyStop | None = None
    begin_with: Callable[[Replica], None] | None = None
    ended: str = ""
    stream_position: Any = None
    servers: int = 0
    pace: Pace = field(default_factory=Pace)
    profiler: StepProfiler = field(default_factory=StepProfiler)

    @property
    def key(self) -> StateKey:
        live = self.engine.live
        assert live is not None, "memory holds no state"
        return live

    def exchanges(self) -> list[BucketMemory]:
        """Return the buckets of the step that follows the live state."""
        names = updates_of_step(self.task, self.strategy.names, self.replica.step)
        return self.strategy.exchanges(self.replica.step, names)

    @property
    def is_last(self) -> bool:
        """Whether the live state is the last one of the job."""
        total = self.plan.steps_total
        return self.replica.step >= total or self.replica.ended_of == total

    @property
    def wants_end(self) -> str:
        """This worker's reason to make the current step the last one; empty if it has none."""
        train = self.spec.train
        stopped = why_it_ends(train, self.judged) if self.judged is not None else ""
        return stopped or self.callbacks.reason

    def fit_plan(self, ranks: int) -> None:
        """Fit the plan to so many ranks that train; before the first step of a generation."""
        self.plan = self.single.fit(self.plan, ranks)

    def open(self) -> None:
        """Open the next step, including the evaluation that may precede it."""
        self.engine.open()
        self.judged = None
        self.replica.own.begin()

    def begin(self, ring: Collective) -> None:
        """A step on this ring begins: snapshot all that it may change before its commit."""
        with mapped_blocks():  # what a generation allocates in its first step, and keeps
            self.strategy.begin(ring.check, self.replica.scaler.scale)
        self.buffers.take_snapshot()
        self.engine.begin(ring.generation, steps=len(self.plan.round(self.replica.step)))

    def committed(self) -> None:
        """The current step has been applied: commit it."""
        self.engine.commit()
        self.replica.own.keep()
        self.strategy.commit()
        self.strategy.release()

    def take_back(self) -> None:
        """Undo the changes of the current step so far, including those of running buffers."""
        self.strategy.rollback()
        self.buffers.restore()

    def discard(self) -> None:
        """Discard the current step, if there is one."""
        if self.engine.discard():
            self.take_back()
            self.strategy.release()
        self.replica.own.restore()

    def reset(self) -> None:
        """Make the live state the fresh one."""
        reset_replica(self.replica, self.task, self.spec, self.device, self.data.samples[0])
        if self.begin_with is not None:
            self.begin_with(self.replica)
        self._rewind()

    def _rewind(self) -> None:
        if self.data.stream is not None:
            first = self.replica.step * self.spec.job.global_batch_size
            self.data.stream.go_to(first, self.replica.stream)

    def replaced(self, key: StateKey) -> None:
        """Another state is live now: clear everything that was derived from the old one."""
        self.engine.replaced(key)
        self.strategy.replaced()
        self._rewind()
        self.plan = self.plan.following(self.replica.position, self.replica.ledger.seed)
        self.metrics, self.ended, self.callbacks.reason = {}, "", ""
        self.checkpoints.drop()

    def close(self) -> None:
        self.data.close()
        self.strategy.close()
        self.checkpoints.close()


def build_session(
    *,
    spec: JobSpec,
    folder: JobFolder,
    task: Task,
    device: torch.device,
    reporter: Reporter,
    serves: bool = False,
) -> JobSession:
    """Build the model, open the data, lay out the buckets.

    Raises:
        TaskError: the task, its data or the job's settings cannot be used on this worker.
    """
    check_precision(spec.train.precision, device)
    warn = WarningThrottle(reporter.warning)
    data = _open_data(task, spec, device, warn)
    replica = build_replica(
        task, spec, device, epoch_rows=data.order.places, sample=data.samples[0]
    )
    check_tensors(replica.model)
    shown = shows_model(task, evaluates=data.evaluator is not None)
    size = state_size(replica, spec, shows_whole=shown)
    check_room(size, spec, device, serves=serves)
    buffers = RunningBuffers(replica.model)
    rehearsal = Rehearsal(task=task, replica=replica, buffers=buffers, spec=spec, device=device)
    plan, single, doubts = _try(rehearsal, data)
    strategy, scalars = _build_strategy(rehearsal, data, plan)
    callbacks = Callbacks(task, replica, lambda step: plan.position(step).epoch)
    return JobSession(
        spec=spec,
        task=task,
        device=device,
        data=data,
        plan=plan,
        single=single,
        doubts=[("task_doubtful", doubt) for doubt in doubts],
        replica=replica,
        strategy=strategy,
        scalars=scalars,
        buffers=buffers,
        watch=ParameterWatch(
            replica.model,
            reporter.progress,
            reads=not strategy.divides_parameters,
            stay=strategy.shards is not None,
        ),
        memory=MemoryMeter(
            size, replica=replica, strategy=strategy, spec=spec, device=device, reporter=reporter
        ),
        checkpoints=Checkpoints(
            spec=spec,
            folder=folder,
            reporter=reporter,
            warn=warn,
            saved=callbacks.tell_saved,
            local_state=partial(_local_state, spec, strategy, replica),
        ),
        callbacks=callbacks,
        reporter=reporter,
        warn=warn,
    )


def _open_data(task: Task, spec: JobSpec, device: torch.device, warn: Warn) -> Data:
    job = spec.job
    seed_generators(job.seed, device)
    training = train_dataset_of(task, partial(stream_rows, task, spec))
    seed_generators(job.seed, device)  # a split at random is the same in both methods
    evaluation, stream = eval_dataset_of(task), stream_in(training)
    check_evaluated(spec, has_evaluation=evaluation is not None)
    loader = Loader(
        training,
        seed=job.seed,
        loader_workers=spec.train.loader_workers,
        device=str(device),
        warn=warn,
    )
    order = (
        InSequence(job.global_batch_size)
        if stream is not None
        else order_of(task, len(training), batch_rows=job.global_batch_size, seed=job.seed)
    )
    return Data(
        training=training,
        stream=stream,
        loader=loader,
        order=order,
        samples=samples_of(training, job.seed, loader),
        one_row=one_row_of(training, job.seed, loader),
        evaluator=Evaluator(task, evaluation, spec, device, warn=warn)
        if evaluation is not None
        else None,
    )


def _try(rehearsal: Rehearsal, data: Data) -> tuple[JobPlan, SingleRow, list[str]]:
    """Try the model with a few rows; returns the plan, what may change it, and doubts."""
    replica, spec = rehearsal.replica, rehearsal.spec
    run = partial(rehearsal.run, structure=Structure(replica.model, stay=False))
    plan = JobPlan(spec=spec, order=data.order, smallest_rows=smallest_rows(replica.model))
    single = SingleRow(replica.model, partial(run, data.one_row, backward=False))
    plan = single.fit(plan, _MOST_RANKS if spec.strategy.name in SHARDED else 1)
    alone = spec.elastic.max_workers == spec.train.grad_accumulation == 1
    doubts = check_gradient_hooks(
        replica.trained, partial(run, data.samples[0], backward=True), alone=alone
    )
    return plan, single, doubts


def _build_strategy(
    rehearsal: Rehearsal, data: Data, plan: JobPlan
) -> tuple[Strategy, StepScalars]:
    """Build the strategy, and divide the state if it does so."""
    replica, spec, device = rehearsal.replica, rehearsal.spec, rehearsal.device
    scalars = StepScalars(
        parameters=len(replica.trained),
        buffer_elements=rehearsal.buffers.elements,
        buffer_words=rehearsal.buffers.words,
    )
    if spec.strategy.name in SHARDED:
        rehearsal.check_divisible()
    metadata(replica)  # refuses what no state can hold
    strategy = build_strategy(
        spec, parts_of(replica), device, scalars, model=replica.model, passes=plan.most_parts
    )
    replica.shared, replica.shards = strategy.shared, strategy.shards
    if replica.shards is not None:
        replica.shards.bind(replica.optimizer)
        rehearse = partial(
            rehearsal.run,
            structure=Structure(replica.model, stay=False),
            backward=strategy.divides_parameters,
        )
        strategy.watch([partial(rehearse, one, number=n) for n, one in enumerate(data.samples)])
    return strategy, scalars


def shows_model(task: Any, *, evaluates: bool) -> bool:
    """Return whether something may look at the whole model between two steps."""
    told = (getattr(task, name, None) for name in ("on_start", "on_end"))
    return evaluates or any(method is not None for method in told)


def parts_of(replica: Replica) -> list[Part]:
    """Return the parameters of each of the replica's optimizers, in order."""
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
    """Return the updates that a step makes, in order."""
    choose: Callable[[int], Sequence[str]] | None = getattr(task, "updates", None)
    chosen = list(choose(step)) if choose is not None and len(names) > 1 else list(names)
    if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(names):
        raise TaskError(
            f"updates({step}) of the task returned {chosen!r}",
            remedy=f"return some of {', '.join(names)}, each once at most, in order",
        )
    return chosen


def _local_state(spec: JobSpec, strategy: Strategy, replica: Replica) -> dict[str, str]:
    """Return each rank's local state, by name, and its value in a rank that loads the state."""
    sparse = spec.strategy.codec in SPARSE and spec.strategy.momentum > 0
    local = replica.optimizer_is_local
    kept = {
        f"residual of {spec.strategy.codec}": bool(strategy.unsent(replica.step)),
        f"velocity of {spec.strategy.codec}": sparse,
        "inner optimizer": local,
        "drift": local and spec.strategy.name == "streaming_diloco",
    }
    return {name: "zero" for name, is_kept in kept.items() if is_kept}
