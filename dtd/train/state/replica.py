"""A full copy of the training state, and the application of a step to it.

Model, optimizer, loss scaler, counters and the task's own state are the whole state of a job: what
replicas must hold alike, what peers send one another and what checkpoints save
(`dtd.train.state.tensors`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from dtd.engine.sampler import Ledger, Position, advance
from dtd.engine.shards import WHOLE, ShardSet
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.strategy.nested import copied
from dtd.strategy.replicated import OptimizerSnapshot
from dtd.strategy.sharded.state import ShardedState
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.data.rows import seed_generators
from dtd.train.evaluation import NOTHING_SEEN, EarlyStop
from dtd.train.optim.gradient_hooks import HookKey, hooks_on, replace_hooks
from dtd.train.optim.schedule import TaskSchedule, learning_rate, schedule_of
from dtd.train.optim.task_optimizer import JoinedOptimizer, check_kept, optimizer_of
from dtd.train.plan import steps_of
from dtd.train.state.weights import Averages, live_tensors, parameter_names
from dtd.train.task import Task, stand_in
from dtd.train.warm_up.model_checks import check_built
from dtd.train.warm_up.model_setup import (
    LossScaler,
    Recomputation,
    Sample,
    autocast,
    blocks_of,
    loss_scaler,
    materialise,
)

MAX_VALUES_BYTES: Final = 256 * 1024
MAX_TENSOR_BYTES: Final = 64 * 1024 * 1024


class OwnState:
    """The state of one task.

    Raises:
        TaskError: it has one of the methods without the other, or its state is not fit for one.
    """

    def __init__(self, task: Any = None) -> None:
        save, load = (getattr(task, name, None) for name in ("state_dict", "load_state_dict"))
        if (save is None) != (load is None):
            raise TaskError(
                "the task has one of state_dict() and load_state_dict(state) without the other",
                remedy="give it both, or none",
            )
        self._save, self._load = save, load
        self._fresh = self._copy()
        self._before: dict[str, Any] | None = None

    def parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Live tensors and plain values, by name in order.

        Raises:
            TaskError: it holds anything else, or too much.
        """
        if self._save is None:
            return {}, {}
        state = self._save()
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            raise _unfit("is not a dictionary with names as keys")
        tensors = {k: v.detach() for k, v in sorted(state.items()) if isinstance(v, Tensor)}
        values = {k: v for k, v in sorted(state.items()) if not isinstance(v, Tensor)}
        if sum(tensor.nbytes for tensor in tensors.values()) > MAX_TENSOR_BYTES:
            raise _unfit(f"holds tensors of more than {MAX_TENSOR_BYTES >> 20} MiB")
        return tensors, json.loads(_json(values))

    def load(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        if self._load is not None:
            self._load({**tensors, **values})

    def reset(self) -> None:
        """Restore the state with which the task was made."""
        self._put(self._fresh)

    # --- a step ----------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins: what changes from here on may have to be taken back."""
        self._before = self._copy()

    def keep(self) -> None:
        self._before = None

    def restore(self) -> None:
        """Nothing of the step happened, if one has begun."""
        if self._before is not None:
            before, self._before = self._before, None
            self._put(before)

    @contextlib.contextmanager
    def unchanged(self, by: str) -> Iterator[None]:
        """Check that the task leaves its state unchanged."""
        before = self._fingerprint()
        yield
        if self._fingerprint() != before:
            raise TaskError(
                f"the task's own state changed in {by}, which does not run alike on every worker",
                remedy="change it in on_step() or on_evaluation(), or leave it out of state_dict()",
            )

    def _fingerprint(self) -> bytes:
        if self._save is None:
            return b""
        tensors, values = self.parts()
        content = xxhash.xxh3_128(_json(values))
        for name, tensor in tensors.items():
            content.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor_bytes(tensor.cpu().contiguous()))
        return content.digest()

    def _copy(self) -> dict[str, Any]:
        tensors, values = self.parts()
        return {**{name: tensor.clone() for name, tensor in tensors.items()}, **values}

    def _put(self, state: Mapping[str, Any]) -> None:
        """Load a copy of a copy: the task may change its argument."""
        if self._load is not None:
            copied = {k: v.clone() if isinstance(v, Tensor) else v for k, v in state.items()}
            values = {k: v for k, v in copied.items() if not isinstance(v, Tensor)}
            self._load({**copied, **json.loads(_json(values))})


def _json(values: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(values, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise _unfit(f"holds what is neither a tensor nor a JSON value: {error}") from error
    if len(text) > MAX_VALUES_BYTES:
        raise _unfit(f"holds values of more than {MAX_VALUES_BYTES >> 10} KiB")
    return text


def _unfit(why: str) -> TaskError:
    return TaskError(
        f"what state_dict() of the task returned {why}",
        remedy="let it be a dictionary of tensors, numbers, text, lists and dictionaries",
    )


@dataclass(slots=True)
class Replica:
    """The state of a job on one worker.

    Attributes:
        optimizer_hooks: hooks on gradients that were added with the optimizer.
        base_lrs: learning rate of each parameter group before the job's schedule.
        ledger: counts the rows that were not used as planned.
        updates: committed steps that were not skipped.
        skipped_in_row: committed steps since the last update, all of them skipped.
        epoch: epoch of the next row.
        offset: rows used in that epoch.
        early_stop: what evaluations have shown.
        ended_of: steps of the job that ended early with the last step; 0 if it continues.
        stream: position of the next row, where rows come from a stream; None at its beginning.
        schedule: the task's own; None where the job's [schedule] counts.
        averages: of the weights; None without `train.ema_decay`.
        local_from: from this step the optimizer's state is this rank's own; None: never.
        shared: tensors of the strategy that are a part of the state, by name.
        shards: this rank's part of trained parameters and optimizer state; None: all of it.
        recomputation: a context in which a step is computed, with `train.activation_checkpointing`.
        grouped: names of the parameters in each of the optimizer's groups, in its order.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    base_lrs: list[float]
    scaler: LossScaler
    trained: list[tuple[str, nn.Parameter]]
    ledger: Ledger
    optimizer_hooks: set[HookKey] = field(default_factory=set)
    step: int = 0
    updates: int = 0
    skipped_in_row: int = 0
    epoch: int = 0
    offset: int = 0
    own: OwnState = field(default_factory=OwnState)
    early_stop: EarlyStop = NOTHING_SEEN
    ended_of: int = 0
    stream: Any = None
    schedule: TaskSchedule | None = None
    averages: Averages | None = None
    strategy: str = "replicated"
    local_from: int | None = None
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    shards: ShardedState | None = None
    recomputation: AbstractContextManager[None] = field(default_factory=contextlib.nullcontext)
    grouped: list[list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.grouped = _grouped(self.model, self.optimizer)

    @property
    def optimizer_is_local(self) -> bool:
        """The optimizer's state is this rank's own, and no part of the job's."""
        return self.local_from is not None and self.step >= self.local_from

    @property
    def has_its_part(self) -> bool:
        """Whether it has the shards of its rank, not only the common part."""
        return self.shards is None or self.shards.is_complete

    @property
    def held_part(self) -> ShardSet:
        """Which part of the state this rank holds."""
        return WHOLE if self.shards is None else self.shards.holds

    @property
    def skipped(self) -> int:
        """Committed steps that updated nothing."""
        return self.step - self.updates

    @property
    def position(self) -> Position:
        """The place of the next row."""
        return Position(self.epoch, self.offset)

    def advance(self, position: Position, rows: int, *, seed: int) -> None:
        """Count a committed step of `rows` rows at `position`, in the order of this seed."""
        after = advance(position, rows, self.ledger.length)
        self.ledger.seed = seed
        self.step += 1
        self.epoch, self.offset = after.epoch, after.offset

    @property
    def update_names(self) -> list[str]:
        """Names of the optimizers in order; one empty name if there is only one."""
        optimizer = self.optimizer
        return list(optimizer.parts) if isinstance(optimizer, JoinedOptimizer) else [""]

    def part(self, name: str) -> torch.optim.Optimizer:
        optimizer = self.optimizer
        return optimizer.parts[name] if isinstance(optimizer, JoinedOptimizer) else optimizer

    def update(self, name: str) -> None:
        """Let one of several optimizers, or the only one, update its parameters.

        Raises:
            TaskError: it keeps something that is of no parameter.
        """
        if isinstance(self.optimizer, JoinedOptimizer):
            self.optimizer.step(name)
        else:
            self.optimizer.step()
        check_kept(self.part(name))

    def set_learning_rates(self, spec: JobSpec, updates_total: int, *, ahead: int = 0) -> None:
        """Set the rates of the next update, unless the task has a schedule of its own.

        This rank alone may be some updates `ahead` of the last one that counts.
        """
        if self.schedule is None:
            groups = self.optimizer.param_groups
            for group, base_lr in zip(groups, self.base_lrs, strict=True):
                rate = learning_rate(
                    spec.schedule,
                    base_lr=base_lr,
                    update=self.updates + ahead,
                    updates_total=updates_total,
                )
                _set_rate(group, rate)

    def updated(self, steps: int = 1) -> None:
        """Count an update, or those of a round, and advance the task's schedule.

        Local steps have advanced that themselves (`dtd.train.state.replica`).
        """
        if self.averages is not None:
            self.averages.update(first=self.updates == 0, steps=steps)
        self.updates += steps
        self.skipped_in_row = 0
        if self.schedule is not None and not self.optimizer_is_local:
            self.schedule.step()

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that are evaluated: the averages, if there are any."""
        return contextlib.nullcontext() if self.averages is None else self.averages.in_place()


def _grouped(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Names of the parameters in each group of an optimizer over whole parameters."""
    names = parameter_names(model)
    return [
        [
            names.get(one, f"parameter {place} of group {number}")
            for place, one in enumerate(group["params"])
        ]
        for number, group in enumerate(optimizer.param_groups)
    ]


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """Set a group's learning rate; it keeps its type, as with the schedules of torch."""
    kept = group["lr"]
    if isinstance(kept, Tensor):
        kept.fill_(rate)
    else:
        group["lr"] = type(kept)(rate) if isinstance(kept, np.floating) else rate


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are not frozen, shared ones once."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise TaskError(
            "the model has no parameter to train",
            remedy="build_model() must return a model with requires_grad parameters",
        )
    return named


def build_model(task: Task, spec: JobSpec, device: torch.device, sample: Sample) -> nn.Module:
    """The task's model, initialised from the job's seed, ready to train on its device."""
    seed_generators(spec.job.seed, device)
    built: Any = task.build_model()
    if not isinstance(built, nn.Module):
        raise TaskError(
            f"build_model() of the task returned a {type(built).__name__}",
            remedy="return a torch.nn.Module",
        )
    check_built(built)
    model = built.to(device)
    with autocast(spec.train.precision, device):
        materialise(model, lambda lazy: _losses(task, lazy, sample()))
    return model


def _losses(task: Any, model: nn.Module, batch: Any) -> None:
    """Compute every loss of a task, for the sake of the shapes that come up."""
    if not hasattr(task, "build_optimizers"):
        task.loss(model, batch)
        return
    if not hasattr(task, "updates"):
        raise TaskError(
            "the task has lazy parameters and several optimizers, whose names are not known yet",
            remedy="add updates(step), which returns their names",
        )
    for name in task.updates(0):
        task.loss(model, batch, name)


def build_replica(
    task: Task, spec: JobSpec, device: torch.device, *, epoch_rows: int, sample: Sample
) -> Replica:
    """A fresh state: step 0; `sample` gives lazy parameters their shapes."""
    model = build_model(task, spec, device, sample)
    trained = trained_parameters(model)
    parameters = [parameter for _, parameter in trained]
    before = hooks_on(parameters)
    replica = Replica(
        model=model,
        optimizer=optimizer_of(task, spec.optimizer, trained),
        base_lrs=[],
        scaler=loss_scaler(spec.train.precision),
        trained=trained,
        ledger=Ledger(length=epoch_rows),
        own=OwnState(task),
        strategy=spec.strategy.name,
        local_from=spec.strategy.local_from,
    )
    replica.optimizer_hooks = hooks_on(parameters) - before
    _add_schedule(replica, task, spec)
    if spec.train.activation_checkpointing:
        replica.recomputation = Recomputation(blocks_of(model))
    if spec.train.ema_decay:
        replica.averages = Averages(model, parameters, decay=spec.train.ema_decay)
    return replica


def _add_schedule(replica: Replica, task: Task, spec: JobSpec) -> None:
    """Note the learning rates of a new optimizer's groups, and build the task's schedule."""
    replica.base_lrs = [float(group["lr"]) for group in replica.optimizer.param_groups]
    total_steps = steps_of(spec, replica.ledger.length)
    replica.schedule = schedule_of(task, replica.optimizer, total_steps)


def move_weights(fresh: nn.Module, model: nn.Module) -> None:
    """Give a model the weights of another one of the same kind, which loses them one by one."""
    own = dict(live_tensors(model))
    for name, value in live_tensors(fresh):
        storage = value.untyped_storage()
        if value.numel() and not storage.nbytes():
            continue  # a tied one, under its second name
        if storage.data_ptr() == own[name].untyped_storage().data_ptr():
            continue  # the task gives both models this one, which is not trained
        own[name].copy_(value)
        if storage.nbytes() == value.nbytes and storage.resizable():
            storage.resize_(0)


def _check_fresh(fresh: nn.Module, trained: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse a model that is none of its own: its parameters are those that have been trained."""
    own = {id(parameter) for parameter in fresh.parameters()}
    for name, parameter in trained:
        if id(parameter) in own:
            raise TaskError(
                f"training begins again, and build_model() of the task returned the same parameter"
                f" {name} as before, which has been trained",
                remedy="make the model in build_model(), not in the task's constructor",
            )


def reset_replica(
    replica: Replica, task: Task, spec: JobSpec, device: torch.device, sample: Sample
) -> None:
    """Go back to step 0 without giving up the model, which hooks, buckets and the task refer to.

    There is never room for two states: where the state is divided, what is held goes first.
    """
    if replica.shards is not None:
        replica.shards.drop()
    fresh = build_model(stand_in(task), spec, device, sample)
    _check_fresh(fresh, replica.trained)
    if replica.shards is not None:
        replica.shards.allocate()
    move_weights(fresh, replica.model)
    parameters = [parameter for _, parameter in replica.trained]
    before = hooks_on(parameters)
    replica.optimizer = optimizer_of(task, spec.optimizer, replica.trained)
    added = hooks_on(parameters) - before
    replace_hooks(parameters, replica.optimizer_hooks, added)
    replica.optimizer_hooks = added
    replica.grouped = _grouped(replica.model, replica.optimizer)
    if replica.shards is not None:
        replica.shards.bind(replica.optimizer)
    replica.scaler = loss_scaler(spec.train.precision)
    replica.ledger = Ledger(length=replica.ledger.length)
    replica.step = replica.updates = replica.skipped_in_row = 0
    replica.epoch = replica.offset = replica.ended_of = 0
    replica.early_stop, replica.stream = NOTHING_SEEN, None
    replica.own.reset()
    for tensor in replica.shared.values():
        tensor.zero_()
    _add_schedule(replica, task, spec)
    if replica.averages is not None:
        replica.averages.begin()


class LocalStepsUndo:
    """A copy of the optimizer's and the schedule's state before a round."""

    def __init__(self, replica: Replica) -> None:
        self._schedule = replica.schedule
        self._tensors: dict[str, Tensor] = {}
        if replica.schedule is not None:
            self._schedule_state = replica.schedule.state(self._tensors)
            self._tensors = copied(self._tensors)
        self._optimizer = OptimizerSnapshot(replica.optimizer)

    def restore(self) -> None:
        if self._schedule is not None:
            self._schedule.load(self._schedule_state, self._tensors)
        self._optimizer.restore()
