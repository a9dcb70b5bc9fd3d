"""`dtd.join`: the user's side of a run, in the user's thread.

    with dtd.join(model, optimizer) as run:
        for batch in run.batches(dataset, global_batch_size=256, epochs=10):
            loss_fn(model, batch).backward()
            optimizer.step()

While a run is open, three functions are not torch's own for the thread that has joined:
`torch.autograd.backward` (which `Tensor.backward` calls) hands the loss of an open batch to the
training thread, `step` of each optimizer waits for its turn, and `step` of a schedule that was
passed in is refused, because the run steps it.  They are restored when the run is closed.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from dtd.errors import CodeError, TaskError
from dtd.own_loop.alone import Alone
from dtd.own_loop.task import END, Host, LoopTask, UserLoop
from dtd.own_loop.turns import Point, Turns, place_in_user_code
from dtd.rules import did_you_mean
from dtd.text.names import METRIC_WORDS, is_metric, name_of
from dtd.train.record import Moment
from dtd.train.task import Collate, MapDataset
from dtd.train.warm_up.model_setup import autocast

_MOST_LOGGED: Final = 64
_SUM: Final = 2
"""Kept by torch with a loss that was computed with reduction="sum"."""
_BACKWARD: Final = torch.autograd.backward
_AT_START: Final = Moment(rank=0, world_size=1, step=0, epoch=0, metrics={})

_hosts: list[Host] = []
"""The host of all runs of this process; none: each run is trained alone."""
_clusters: list[Callable[[str], Host | None]] = []
"""Finds the host of a job of this name on a cluster; None where there is none."""
_runs: dict[int, Run] = {}
"""Open runs by the thread that has joined."""


def offer(host: Host) -> None:
    """Have each `join` of this process trained by this host."""
    _hosts[:] = [host]


def look_for_cluster(find: Callable[[str], Host | None]) -> None:
    """Have each `join` of a process without a host look for a cluster, before it trains alone."""
    _clusters[:] = [find]


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    schedule: LRScheduler | None = None,
    *,
    name: str = "",
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Begin a run: the loop that follows is trained alone, or on a cluster (`dtdctl run`).

    Args:
        model: all of its parameters that require gradients are trained.
        optimizer: over these; or several by name, which share them out and step in this order.
        schedule: of the only optimizer; the run steps it after every update.
        name: of the job, which names its checkpoints; default: the script's.
        seed: determines the order of rows, and what the loop draws from torch, numpy and random;
            None: the job's, which is 0 unless it is set.
        settings: of a job file, such as {"checkpoint.every_steps": 500}.

    Raises:
        TaskError: another run is open, or the optimizers are not of this model.
    """
    if threading.get_ident() in _runs:
        raise TaskError(
            f"another run is open ({place_in_user_code()})",
            remedy="close it before: `with dtd.join(...) as run:`",
        )
    several = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
    _check_owned(model, several)
    given = dict(settings or {}) | ({} if seed is None else {"job.seed": seed})
    own_name = name or _script_name()
    host = _hosts[0] if _hosts else _host(own_name)
    return Run(model, several, schedule, given, host)


def _check_owned(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    if any(map(is_lazy, model.parameters())):
        raise TaskError(
            "the model has lazy parameters, which no optimizer can have yet",
            remedy="call the model once with a few rows before the optimizer is made",
        )
    if any(one.is_meta for one in model.parameters()):
        raise TaskError(
            "the model is on the meta device, where it has no values",
            remedy="build it on the CPU: the run moves it to the worker's device",
        )
    own = {id(parameter) for parameter in model.parameters()}
    for name, optimizer in optimizers.items():
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            if id(parameter) not in own:
                raise TaskError(
                    f"the optimizer{f' {name}' if name else ''} has a parameter of shape"
                    f" {tuple(parameter.shape)} that is not the model's",
                    remedy="make it of model.parameters(), after the model is on its device",
                )


def _host(name: str) -> Host:
    found = (host for find in _clusters if (host := find(name)) is not None)
    return next(found, None) or Alone(name)


def _script_name() -> str:
    return name_of(Path(sys.argv[0]).stem) or "notebook"


class Run:
    """A user's loop as a part of a job."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedule: LRScheduler | None,
        settings: Mapping[str, Any],
        host: Host,
    ) -> None:
        self._model, self._optimizers, self._schedule = model, optimizers, schedule
        self._settings = dict(settings)
        self._host = host
        self._turns = Turns()
        self._task: LoopTask | None = None
        self._registered: dict[str, Any] = {}
        self._evaluation: Any = None
        self._thread = threading.get_ident()
        self._open = self._complete = False
        self._restore = contextlib.ExitStack()
        self._intercept()

    # --- before the first batch --------------------------------------------------------------

    def register(self, name: str, value: Any) -> None:
        """Make an object's state a part of the job's: checkpoints have it, a joiner gets it.

        Args:
            name: an identifier.
            value: has state_dict(), with tensors and JSON values, and load_state_dict(state).

        Raises:
            TaskError: it lacks a method, or the run has begun.
        """
        lacks = [one for one in ("state_dict", "load_state_dict") if not hasattr(value, one)]
        if lacks:
            raise TaskError(f"{name} has no {lacks[0]}()", remedy="register objects that have both")
        self._before_batches("register()")
        self._registered[name] = value

    def evaluate(
        self, rows: MapDataset, metrics: Callable[[nn.Module, Any], Mapping[str, Any]]
    ) -> None:
        """Evaluate rows every `train.eval_every`, shared out to all ranks, and at the end.

        Args:
            rows: by number.
            metrics: `metrics(model, batch)` returns {name: (sum over the batch, its divisor)}.

        Raises:
            TaskError: the run has begun.
        """
        self._before_batches("evaluate()")
        self._evaluation = rows, metrics

    def _before_batches(self, method: str) -> None:
        if self._task is not None:
            raise TaskError(
                f"run.{method} is called after the first batch ({place_in_user_code()})",
                remedy="call it before run.batches()",
            )

    # --- batches -----------------------------------------------------------------------------

    def batches(
        self,
        rows: MapDataset,
        *,
        global_batch_size: int,
        epochs: int | None = None,
        steps: int | None = None,
        collate_fn: Collate | None = None,
        accumulate: int | None = None,
        updates: Callable[[int], Sequence[str]] | None = None,
    ) -> Iterator[Any]:
        """Yield this rank's rows of each global batch, on the model's device, until the job ends.

        Rows are shuffled by epoch with the job's seed.  A batch whose step was discarded, because a
        worker was lost, comes again.

        Args:
            rows: a dataset of numbered rows, the same on every rank.
            global_batch_size: rows of a step over all ranks.
            epochs: passes over the rows.
            steps: updates, instead of epochs.
            collate_fn: makes a batch of a list of rows; None: torch's default.
            accumulate: parts in which a rank's rows of a step come, each with its own backward();
                `optimizer.step()` counts after the last one; None: the job's, which is 1 unless it
                is set.
            updates: `updates(step)` names the optimizers that step for a batch, in order, by the
                number of committed steps; None: all, in the order of `dtd.join`.

        Raises:
            TaskError: the loop cannot be trained.
        """
        self._before_batches("batches()")
        if isinstance(rows, DataLoader):
            raise TaskError(
                f"run.batches() got a DataLoader ({place_in_user_code()}), which gives the same"
                " rows to each worker",
                remedy="pass its dataset, and its collate_fn; num_workers is"
                ' settings={"train.loader_workers": N} of dtd.join(), and a sampler is left out',
            )
        parts = {} if accumulate is None else {"train.grad_accumulation": accumulate}
        loop = UserLoop(
            model=self._model,
            optimizers=self._optimizers,
            schedule=self._schedule,
            rows=rows,
            collate=collate_fn,
            evaluation=self._evaluation,
            registered=self._registered,
            updates=updates,
            settings={
                **self._settings,
                "job.global_batch_size": global_batch_size,
                "job.epochs": epochs,
                "job.steps": steps,
                **parts,
            },
        )
        self._task = self._host.begin(loop, self._turns)
        return self._yield_batches(self._task)

    def _yield_batches(self, task: LoopTask) -> Iterator[Any]:
        while (batch := self._turns.arrive(Point.NEXT)) is not END:
            self._open = True
            with autocast(task.precision, next(self._model.parameters()).device):
                yield batch
            self._open = False
        self._complete = True
        self.close()

    @contextlib.contextmanager
    def step(self) -> Iterator[Step]:
        """Spell one batch's losses and updates out: `with run.step() as step:`.

        Raises:
            TaskError: no batch is open.
        """
        self._in_batch("run.step()")
        yield Step(self, self._optimizers)

    def log(self, **figures: Any) -> None:
        """Add numbers of this step to the job's curves, where those of evaluations are.

        Those of rank 0 count.  If steps are short, some steps are left out.

        Args:
            figures: numbers, or tensors with one element, by name.

        Raises:
            TaskError: a name is not fit for a curve, or there are more than 64.
        """
        task = self._in_batch("run.log()")
        for name, value in figures.items():
            if not is_metric(name):
                raise self._wrong(f"logs {name!r}", f"a figure's name has {METRIC_WORDS}")
            task.logged[name] = float(value)
        if len(task.logged) > _MOST_LOGGED:
            raise self._wrong(f"logs more than {_MOST_LOGGED} figures in a step", "log fewer")

    def stop(self, reason: str = "the loop has said so") -> None:
        """End the job with the next step, on every rank, with a checkpoint."""
        if self._task is not None:
            self._task.stop = reason

    # --- where the run is --------------------------------------------------------------------

    @property
    def _moment(self) -> Moment:
        moment = self._task.moment if self._task is not None else None
        return moment or _AT_START

    @property
    def rank(self) -> int:
        """This process's number in the present generation."""
        return self._moment.rank

    @property
    def world_size(self) -> int:
        """Number of ranks in the present generation."""
        return self._moment.world_size

    @property
    def step_number(self) -> int:
        """Committed steps."""
        return self._moment.step

    @property
    def epoch(self) -> int:
        """The epoch of the last committed row."""
        return self._moment.epoch

    @property
    def loss(self) -> float:
        """Mean loss of the last committed step over all ranks."""
        return self._moment.metrics.get("loss", float("nan"))

    @property
    def is_main(self) -> bool:
        """Whether this process prints and logs for all."""
        return self.rank == 0

    # --- torch's methods ---------------------------------------------------------------------

    def _intercept(self) -> None:
        torch.autograd.backward = _backward
        _runs[self._thread] = self
        for name, optimizer in self._optimizers.items():
            self._replace_step(optimizer, functools.partial(self._step, name, optimizer.step))
        if self._schedule is not None:
            schedule = self._schedule
            self._replace_step(schedule, functools.partial(self._scheduled, schedule.step))

    def _replace_step(self, owner: Any, step: Callable[..., Any]) -> None:
        """Replace a method of one object until the run is closed.

        It is a method again, with the marks of the one before: torch's schedules look at both.
        """

        def replaced(_owner: Any, *args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        kept = vars(owner).get("step")
        owner.step = MethodType(functools.update_wrapper(replaced, owner.step), owner)
        if kept is None:
            self._restore.callback(delattr, owner, "step")
        else:
            self._restore.callback(setattr, owner, "step", kept)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Hand the loss of the open batch to the training thread; without one it is torch's."""
        if not self._open:
            _BACKWARD(loss, *args, **kwargs)
            return
        if not isinstance(loss, Tensor) or any(args) or any(kwargs.values()):
            raise self._wrong(
                "calls backward() with several losses or arguments",
                "call loss.backward() of one loss: the sum of all that counts in this step",
            )
        self._differentiate(loss, None)

    def _differentiate(self, loss: Tensor, weight: float | None) -> None:
        """Have the gradients of a loss averaged over all ranks, and wait for them."""
        if loss.numel() != 1:
            raise self._wrong(
                f"calls backward() of a tensor with the shape {tuple(loss.shape)}",
                "take the mean over the rows",
            )
        if weight is None and getattr(loss.grad_fn, "_saved_reduction", 0) == _SUM:
            raise self._wrong(
                'calls backward() of a loss with reduction="sum", and losses are means over rows,'
                " which are averaged over all ranks",
                'use reduction="mean"; or say in `with run.step() as step:` what to divide the sum'
                " by: step.backward(loss, weight=len(rows))",
            )
        self._turns.arrive(Point.BACKWARD, loss if weight is None else (loss, weight))

    def _wrong(self, what: str, remedy: str) -> CodeError:
        return CodeError(
            f"the loop of rank {self.rank} {what} ({place_in_user_code()})", remedy=remedy
        )

    def _in_batch(self, method: str) -> LoopTask:
        if self._task is None or not self._open:
            raise self._wrong(
                f"calls {method} outside of the loop over run.batches()", "call it for a batch"
            )
        return self._task

    def _step(self, name: str, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """An optimizer's step: the user's thread waits for it, the training thread makes it."""
        if threading.get_ident() != self._thread:
            assert self._task is not None
            return self._task.update(name, functools.partial(step, *args, **kwargs))
        if self._task is None or not self._open:
            raise self._wrong(
                "calls optimizer.step() outside of the loop over run.batches()",
                "take the rows from run.batches(): it gives each rank its own, each once",
            )
        return self._turns.arrive(Point.STEP, name)

    def _scheduled(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return step(*args, **kwargs)
        raise TaskError(
            f"the schedule's step() is called ({place_in_user_code()}), and the run steps it after"
            " every update",
            remedy="leave the call out, or do not pass the schedule to dtd.join()",
        )

    # --- the end -----------------------------------------------------------------------------

    def close(self, error: BaseException | None = None) -> None:
        """Leave the run, once; torch's functions are as before."""
        if _runs.get(self._thread) is not self:
            return
        self._open = False
        self._restore.close()
        del _runs[self._thread]
        if not _runs:
            torch.autograd.backward = _BACKWARD
        try:
            if self._task is not None and not self._complete:
                self._turns.arrive(Point.LEFT, error)
        except Exception:
            if error is None:  # else it is known, or follows from it
                raise
        finally:
            self._host.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)


class Step:
    """The losses and updates of one batch, in a loop that spells them out."""

    def __init__(self, run: Run, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._run, self._optimizers = run, optimizers

    def backward(self, *losses: Tensor, weight: float | None = None) -> None:
        """Compute the gradients of the losses' sum; `p.grad` has the averages afterwards.

        Args:
            losses: means over the batch's rows, or sums if there is a weight.
            weight: of this batch, such as its tokens: sums and weights are added up over all ranks
                and divided; None: means are averaged by rows.

        Raises:
            TaskError: a loss has more than one element.
        """
        self._run._differentiate(sum(losses[1:], losses[0]), weight)  # noqa: SLF001 - its other half

    def update(self, optimizer: str = "") -> None:
        """Let an optimizer step: the one of this name, or the only one.

        Raises:
            TaskError: there is none of this name.
        """
        if optimizer not in self._optimizers:
            raise TaskError(
                f"there is no optimizer {optimizer!r} ({place_in_user_code()})",
                remedy=f"dtd.join() got {', '.join(map(repr, self._optimizers))}"
                f"{did_you_mean(optimizer, self._optimizers)}",
            )
        self._optimizers[optimizer].step()


def _backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
    """`torch.autograd.backward` while there is a run."""
    run = _runs.get(threading.get_ident())
    (_BACKWARD if run is None else run.backward)(tensors, *args, **kwargs)
