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

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from dtd.errors import CodeError, DivergenceError, DtdError, LoopLeft, TaskError
from dtd.job import Precision
from dtd.own_loop.turns import Arrival, Point, Turns
from dtd.own_loop.words import in_words_of_loops
from dtd.train.record import Moment
from dtd.train.state.replica import OwnState
from dtd.train.task import Collate, MapDataset

_ORDER: Final = (
    "for each batch of run.batches() call backward() once for each optimizer, then that optimizer's"
    " step(), alike on every rank; several losses: (a + b).backward(); few rows at a time:"
    " run.batches(..., accumulate=N)"
)
_ALIKE: Final = "do the same to averages, learning rates and registered objects on every rank"
END: Final = object()
"""Answer to `next(batches)`: the job is complete."""


@dataclass(slots=True, kw_only=True)
class UserLoop:
    """A loop as its script describes it before the first batch.

    Attributes:
        optimizers: by name; one with an empty name, or several.
        schedule: stepped after every update; None: the loop sets learning rates itself.
        rows: to train on.
        collate: makes a batch of rows; None: torch's way.
        settings: of the job, as "table.key".
        evaluation: rows to evaluate, and `metrics(model, batch)`; None: the job evaluates nothing.
        registered: objects with state_dict() and load_state_dict(), by name.
        updates: returns the optimizers of a step, in order, by its number; None: all of them.
    """

    model: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    schedule: LRScheduler | None
    rows: MapDataset
    collate: Collate | None
    settings: Mapping[str, Any]
    evaluation: tuple[MapDataset, Callable[[nn.Module, Any], Mapping[str, Any]]] | None = None
    registered: Mapping[str, Any] = field(default_factory=dict)
    updates: Callable[[int], Sequence[str]] | None = None


class _Unscheduled(LRScheduler):
    """Leaves the learning rates to the loop."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer  # the base class would set the rates

    def step(self, epoch: int | None = None) -> None:
        """Change nothing."""

    def state_dict(self) -> dict[str, Any]:
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
        logged: figures of `run.log` since the last committed step.
    """

    can_rehearse = False
    labels: Final = {"on_step": "the loop, after optimizer.step(),"}

    def __init__(self, loop: UserLoop, turns: Turns, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._turns = turns
        self._ended = ended
        self._built = False
        self._trained = [one for one in loop.model.parameters() if one.requires_grad]
        self._watched: list[tuple[str, Tensor]] = []
        self._sample: Callable[[], Any] = list
        self._first = ""
        self._inside = False  # from the batch that it was given until it asks for the next one
        self._stands_in = False  # that batch is not of this step
        self._may_step = False
        self._at_first = self._groups()
        self.sets_rates = loop.schedule is None
        self.moment: Moment | None = None
        self.precision: Precision = "float32"
        self.stop = ""
        self.logged: dict[str, float] = {}
        # Optional methods of a task are those that it has.
        if loop.collate is not None:
            self.collate = loop.collate
        if "" in loop.optimizers:
            self.build_optimizer = self._build_optimizer
        else:
            self.build_optimizers = self._build_optimizers
            if loop.updates is not None:
                self.updates = loop.updates
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

    def begin_step(self, sample: Callable[[], Any]) -> None:
        """A step is computed, perhaps not for the first time.

        Args:
            sample: returns a few rows as a batch, for a rank that has none in this step.
        """
        if self._inside:
            self._drop_discarded()
        self._sample, self._first, self._stands_in = sample, "", False
        self.logged = {}

    def loss(self, model: nn.Module, batch: Any, update: str = "") -> Any:
        """Give the loop a batch, and return what it calls `backward()` for."""
        del model
        self._first = self._first or update
        if update == self._first:  # the other optimizers' losses are of the same batch
            self._reach_next()
            self._give(batch)
        return self._take_backward()

    def update(self, name: str, step: Callable[[], Any]) -> Any:
        """Make an optimizer's update when the loop calls its `step()`; returns its result."""
        if not self._inside or self._stands_in:
            self._pass_by()
        before = self._marks()
        arrival = self._next_arrival()
        if arrival.point is not Point.STEP:
            what = "asks for its next batch" if arrival.point is Point.NEXT else "calls backward()"
            raise self._wrong(arrival, f"{what}, and has not called optimizer.step()")
        if arrival.value != name:
            raise self._wrong(
                arrival, f"calls step() of the optimizer {arrival.value!r} and not of {name!r}"
            )
        self._check_unchanged(before, arrival)
        arrival.taken, self._may_step = True, False
        return step()

    def _give(self, batch: Any) -> None:
        """Let the loop, which asks for a batch, have this one."""
        self._inside = True
        self._turns.go_on(batch)

    def _take_backward(self) -> Any:
        arrival = self._next_arrival()
        if arrival.point is Point.NEXT:
            raise self._wrong(
                arrival, "asks for its next batch, and has not called backward() for the last one"
            )
        if arrival.point is Point.STEP:
            raise self._wrong(arrival, "calls optimizer.step(), and has not called backward()")
        arrival.taken = self._may_step = True
        return arrival.value

    def _pass_by(self) -> None:
        """This rank has no rows in this step: run its loop over a few, up to its next step().

        What the loop does to averages and learning rates, and to what is registered, it does on
        every rank.  The loss is not used, and gradients and buffers are the step's again.
        """
        gradients = [(one, one.grad) for one in self._trained]
        with self._buffers_kept():
            for parameter in self._trained:
                parameter.grad = None  # of a loop that begins with zero_grad()
            if not self._inside:
                self._reach_next()
                self._give(self._sample())
                self._stands_in = True
            self._take_backward()
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def take_logged(self) -> dict[str, float]:
        """Return the loop's figures of the committed step, once."""
        taken, self.logged = self.logged, {}
        return taken

    def on_start(self, moment: Moment) -> None:
        """A generation begins, perhaps with another rank; the loss stays the last step's."""
        metrics = self.moment.metrics if self.moment is not None else {}
        self.moment = replace(moment, metrics=metrics)
        model = self._loop.model
        self._watched = [*model.named_parameters(), *model.named_buffers()]

    def on_step(self, moment: Moment) -> str:
        """A step is committed: let the loop go on until it asks for its next batch."""
        self.moment = moment
        if not self._inside:
            self._pass_by()  # of a step that is skipped, and in which this rank has no rows
        if self._may_step:
            self._drop()
        self._reach_next()
        self._inside = False
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
        if self._groups() != self._at_first:
            raise self._wrong(
                arrival,
                "adds parameters to an optimizer after dtd.join()",
                "give it all of them before, and freeze some with requires_grad_(False) or lr = 0",
            )

    def _groups(self) -> list[int]:
        several = self._loop.optimizers.values()
        return [len(group["params"]) for one in several for group in one.param_groups]

    def _drop(self) -> None:
        """Let the loop come to its next batch from a step that was discarded or skipped.

        Its `optimizer.step()` does nothing, and the gradients that it may look at are zero.
        """
        for parameter in self._trained:
            parameter.grad = torch.zeros_like(parameter)
        before = self._marks()
        while (arrival := self._next_arrival()).point is not Point.NEXT:
            self._turns.go_on()
        self._check_unchanged(before, arrival)
        for parameter in self._trained:
            parameter.grad = None
        self._may_step = self._inside = False

    def _drop_discarded(self) -> None:
        """Do the same after a step of which nothing is to be left."""
        registered = OwnState(self)
        registered.begin()
        with self._buffers_kept():
            self._drop()
        registered.restore()

    @contextlib.contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Let copies stand in for buffers, which are as they were afterwards, versions included."""
        modules = self._loop.model.modules()
        kept = [(one, name, b) for one in modules for name, b in one.named_buffers(recurse=False)]
        for module, name, buffer in kept:
            setattr(module, name, buffer.clone())
        yield
        for module, name, buffer in kept:
            setattr(module, name, buffer)

    def _marks(self) -> list[int]:
        """Return values that differ once the loop has changed parameters or buffers."""
        return [one._version for _, one in self._watched]  # noqa: SLF001 - torch's only one

    def _check_unchanged(self, before: Sequence[int], arrival: Arrival) -> None:
        marks = zip(self._watched, before, self._marks(), strict=True)
        changed = [name for (name, _), old, new in marks if old != new]
        if changed:
            raise self._wrong(
                arrival,
                f"changes {changed[0]} after backward(), on which the step has been decided",
                remedy="leave changes of the model to the optimizer and the hooks of its step",
            )

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
            raise _left(arrival, self.moment) from arrival.value
        return arrival

    def _wrong(self, arrival: Arrival, what: str, remedy: str = _ORDER) -> TaskError:
        """Return the error of a loop that does something at a wrong point, and tell the loop."""
        error = CodeError(f"the loop of rank {self._rank} {what} ({arrival.place})", remedy=remedy)
        self._turns.fail(error)
        return error

    def worded(self, error: DtdError) -> DtdError:
        """Return an error of the engine in the words of a loop, with its rank and its line.

        States that differ, none of which has a majority, are the loop's fault: the job would begin
        again, and no loop can.
        """
        if error.message.startswith("the loop of rank"):
            return error
        message, place = in_words_of_loops(error.message), self._turns.place
        if isinstance(error, DivergenceError):
            error.message = message
            return error if error.majority else CodeError(message, remedy=_ALIKE)
        message += f" (rank {self._rank}, {place})" if place else ""
        return type(error)(message, remedy=in_words_of_loops(error.remedy))

    @property
    def _rank(self) -> int:
        return self.moment.rank if self.moment is not None else 0


def _left(arrival: Arrival, moment: Moment | None) -> LoopLeft:
    return LoopLeft(
        f"the loop of rank {moment.rank if moment else 0} was left after step"
        f" {moment.step if moment else 0} ({arrival.place})",
        remedy="call run.stop(reason) to end the job before its last step, on any rank",
    )
