"""A user's loop as a task, so that one engine trains both.

The engine calls a task's methods; here each call meets the user's thread at a point of its loop:

    loss(model, batch)      gives the batch at `next(batches)`, takes the loss at `backward()`
    optimizer.step()        lets `backward()` return, with the averages in `p.grad`, and waits for
                            the loop's own `optimizer.step()`
    on_step()               lets that return, and waits until the loop asks for its next batch
    on_end()                ends the loop, and waits for the rest of the script

`backward()` itself runs on the training thread, with the engine's hooks and factors, between the
two halves of the first line.  So strategies, codecs, votes, commits and recovery are those of every
task.  If a step is discarded, nobody waits for the loop's `optimizer.step()`: it does nothing, and
the same rows are the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from dtd.errors import LoopLeft, TaskError
from dtd.job import Precision
from dtd.own_loop.turns import Arrival, Point, Turns
from dtd.train.record import Moment
from dtd.train.task import Collate, MapDataset

END: Final = object()
"""Answer to `next(batches)`: the job is complete."""


@dataclass(slots=True, kw_only=True)
class UserLoop:
    """A loop as its script describes it before the first batch.

    Attributes:
        model: on any device.
        optimizers: by name; one with an empty name, or several.
        schedule: stepped after every update; None: the loop sets learning rates itself.
        rows: to train on.
        collate: makes a batch of rows; None: torch's way.
        settings: of the job, as "table.key".
        evaluation: rows to evaluate, and `metrics(model, batch)`; None: the job evaluates nothing.
        registered: objects with state_dict() and load_state_dict(), by name.
    """

    model: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    schedule: LRScheduler | None
    rows: MapDataset
    collate: Collate | None
    settings: Mapping[str, Any]
    evaluation: tuple[MapDataset, Callable[[nn.Module, Any], Mapping[str, Any]]] | None = None
    registered: Mapping[str, Any] = field(default_factory=dict)


class _Unscheduled(LRScheduler):
    """Leaves the learning rates to the loop."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer  # the base class would set the rates

    def step(self, epoch: int | None = None) -> None:
        """Change nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load nothing."""


class Host(Protocol):
    """Trains a loop: alone in its process, or as a worker's job."""

    def begin(self, loop: UserLoop, turns: Turns) -> LoopTask:
        """Begin to train on a thread of its own; returns at once."""
        ...

    def close(self) -> None:
        """The loop has ended or was left: wait until the training thread has ended as well."""
        ...


class LoopTask:
    """The task (`dtd.train.task.Task`) of a user's loop.  Its methods run on the training thread.

    Attributes:
        can_rehearse: False: a loop runs forward for its own batches only.
        labels: names of callbacks in messages.
        sets_rates: the loop sets learning rates, after optimizer.step() too.
        moment: of the last committed step; None before the first generation.
        precision: of the forward pass; set by the host, before the first batch.
        stop: why the loop wants the job to end; empty if it does not.
    """

    can_rehearse = False
    labels: Final = {"on_step": "the loop, after optimizer.step(),"}

    def __init__(self, loop: UserLoop, turns: Turns, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._turns = turns
        self._ended = ended
        self._built = False
        self._first = next(iter(loop.optimizers))
        self._given = False
        self._may_step = False
        self.sets_rates = loop.schedule is None
        self.moment: Moment | None = None
        self.precision: Precision = "float32"
        self.stop = ""
        # Optional methods of a task are those that it has.
        if loop.collate is not None:
            self.collate = loop.collate
        if "" in loop.optimizers:
            self.build_optimizer = self._build_optimizer
        else:
            self.build_optimizers = self._build_optimizers
        if loop.evaluation is not None:
            self.eval_dataset, self.metrics = self._eval_dataset, loop.evaluation[1]

    # --- what is trained ---------------------------------------------------------------------

    def build_model(self) -> nn.Module:
        """Return the loop's model.

        Raises:
            TaskError: it has been trained, and the job begins again.
        """
        if self._built:
            raise TaskError(
                "training begins again with the first step, and the model of the loop has been"
                " trained",
                remedy="start the script again",
            )
        self._built = True
        return self._loop.model

    def train_dataset(self) -> MapDataset:
        """Return the rows of `run.batches`."""
        return self._loop.rows

    def _build_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        del parameters
        return self._loop.optimizers[""]

    def _build_optimizers(self, named: Any) -> Mapping[str, torch.optim.Optimizer]:
        del named
        return self._loop.optimizers

    def build_schedule(self, optimizer: torch.optim.Optimizer, total_steps: int) -> LRScheduler:
        """Return the schedule that was passed to `dtd.join`, or one that changes nothing."""
        del total_steps
        return self._loop.schedule or _Unscheduled(optimizer)

    def _eval_dataset(self) -> MapDataset:
        assert self._loop.evaluation is not None
        return self._loop.evaluation[0]

    # --- the loop's own state ----------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the registered objects, with "name." before their keys."""
        return {
            f"{name}.{key}": value
            for name, one in self._loop.registered.items()
            for key, value in one.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give each registered object its part."""
        for name, one in self._loop.registered.items():
            start = f"{name}."
            one.load_state_dict(
                {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}
            )

    # --- a step ------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is computed, perhaps not for the first time: this rank's rows follow, if any."""
        self._given = False
        if self._may_step:
            self._drop()

    def loss(self, model: nn.Module, batch: Any, update: str = "") -> Tensor:
        """Give the loop a batch, and return the loss for which it calls `backward()`.

        Raises:
            TaskError: the loop does something else first.
        """
        del model
        if update == self._first:  # the other optimizers' losses are of the same batch
            self._reach_next()
            self._given = True
            self._turns.go_on(batch)
        arrival = self._next_arrival()
        if arrival.point is Point.NEXT:
            raise self._wrong(
                arrival, "asks for its next batch, and has not called backward() for the last one"
            )
        if arrival.point is Point.STEP:
            raise self._wrong(arrival, "calls optimizer.step(), and has not called backward()")
        arrival.taken = self._may_step = True
        loss: Tensor = arrival.value
        return loss

    def update(self, name: str, step: Callable[[], Any]) -> Any:
        """Make an optimizer's update when the loop calls its `step()`; returns that one's result.

        Args:
            name: of the optimizer.
            step: the optimizer's own method.

        Raises:
            TaskError: the loop does something else first.
        """
        if not self._given:
            return step()  # this rank has no rows in this step, so its loop had no batch
        arrival = self._next_arrival()
        if arrival.point is not Point.STEP:
            what = "asks for its next batch" if arrival.point is Point.NEXT else "calls backward()"
            raise self._wrong(arrival, f"{what}, and has not called optimizer.step()")
        if arrival.value != name:
            raise self._wrong(
                arrival, f"calls step() of the optimizer {arrival.value!r} and not of {name!r}"
            )
        arrival.taken, self._may_step = True, False
        return step()

    def on_start(self, moment: Moment) -> None:
        """A generation begins, perhaps with another rank; the loss stays the last step's."""
        metrics = self.moment.metrics if self.moment is not None else {}
        self.moment = replace(moment, metrics=metrics)

    def on_step(self, moment: Moment) -> str:
        """A step is committed: let the loop go on until it asks for its next batch."""
        self.moment = moment
        if self._may_step:
            self._drop()
        self._reach_next()
        return self.stop

    def on_end(self, moment: Moment) -> None:
        """The job is complete: end the loop, and wait for what follows it in the script."""
        del moment
        self._reach_next()
        self._turns.go_on(END)
        self._ended()

    def _reach_next(self) -> None:
        """Wait until the loop asks for its next batch."""
        while (arrival := self._next_arrival()).point is not Point.NEXT:
            if arrival.point is Point.BACKWARD:
                raise self._wrong(arrival, "calls backward() a second time for one batch")
            if not self._may_step:
                raise self._wrong(arrival, "calls optimizer.step() a second time for one batch")
            self._may_step = False
            self._turns.go_on()

    def _drop(self) -> None:
        """Let the loop come to its next batch from a step that was discarded or skipped.

        Its `optimizer.step()` does nothing, and the gradients that it may look at are zero.
        """
        trained = [one for one in self._loop.model.parameters() if one.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        self._reach_next()
        for parameter in trained:
            parameter.grad = None
        self._may_step = False

    def _next_arrival(self) -> Arrival:
        """Let the loop go on from where it was used, and return where it arrives then.

        Raises:
            BaseException: the loop was left with it.
            TaskError: the loop was left too early.
        """
        arrival = self._turns.arrival()
        if arrival.taken:
            self._turns.go_on()
            arrival = self._turns.arrival()
        if arrival.point is Point.LEFT:
            self._turns.go_on()
            if isinstance(arrival.value, Exception):
                raise arrival.value
            raise _left(arrival, self.moment)
        return arrival

    def _wrong(self, arrival: Arrival, what: str) -> TaskError:
        """Return the error of a loop that does something at a wrong point, and tell the loop."""
        rank = self.moment.rank if self.moment is not None else 0
        error = TaskError(
            f"the loop of rank {rank} {what} ({arrival.place})",
            remedy="for each batch of run.batches() call backward() once for each optimizer, then"
            " that optimizer's step(), alike on every rank; batches of few rows at a time:"
            " run.batches(..., accumulate=N)",
        )
        self._turns.fail(error)
        return error


def _left(arrival: Arrival, moment: Moment | None) -> LoopLeft:
    return LoopLeft(
        f"the loop was left after step {moment.step if moment else 0} ({arrival.place})",
        remedy="call run.stop(reason) to end the job before its last step, on any rank",
    )
