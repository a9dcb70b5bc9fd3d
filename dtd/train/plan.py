"""The plan of every step of a job, as a function of the step alone: rows, slices, due work.

Every worker computes the same plan from the job and the order of its rows.  The plan refers to rows
by number only; `dtd.train.data.loader` loads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dtd.engine.rounds import Rounds
from dtd.engine.sampler import Position, position_of_step, slice_bounds, steps_per_epoch
from dtd.engine.shares import DECIDE_EVERY_STEPS, applies, starts
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.data.rows import BatchRequest, checksum
from dtd.train.data.sampling import Order, Rows

LOOK_AHEAD_STEPS: Final = 100
"""In which the loader looks for the next batch with rows of its rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of one step.

    Attributes:
        requests: its micro-batches, without empty ones.
        first_rows: index of each micro-batch's first row in the global batch.
        counts: whether the model's batch counters follow this rank's micro-batches; true on one
            rank.
    """

    requests: tuple[BatchRequest, ...]
    first_rows: tuple[int, ...]
    rows: int
    global_rows: int
    counts: bool


def steps_of(spec: JobSpec, epoch_rows: int) -> int:
    """Return the number of steps of a whole job whose epochs use so many rows."""
    if spec.job.steps is not None:
        return spec.job.steps
    return (spec.job.epochs or 0) * steps_per_epoch(epoch_rows, spec.job.global_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Steps of one job over one dataset.

    Attributes:
        smallest_rows: fewest rows with which the model can train; every micro-batch has at least as
            many, if necessary because other ranks have none.
        begun: an epoch that another job has partly used, and that job's seed.  The rest of it
            follows the same order; otherwise some rows would be used twice and others never.
        costs: of a row, by rank, if rows are divided by speed (`dtd.engine.shares`); empty: slices
            are equal.
        rounds: which steps are committed together.
    """

    spec: JobSpec
    order: Order
    smallest_rows: int = 1
    begun: tuple[int, int] | None = None
    costs: tuple[int, ...] = ()
    rounds: Rounds = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", Rounds.of(self.spec.strategy))

    def following(self, position: Position, seed: int | None) -> JobPlan:
        """Return the plan for a state at this position, whose epoch was begun with this seed."""
        begun = None
        if position.offset and seed is not None and seed != self.spec.job.seed:
            begun = (position.epoch, seed)
        return replace(self, begun=begun)

    def order_seed(self, epoch: int) -> int:
        """Return the seed that determines the order of an epoch."""
        if self.begun is not None and epoch == self.begun[0]:
            return self.begun[1]
        return self.spec.job.seed

    @property
    def epoch_rows(self) -> int:
        return self.order.places

    @property
    def epoch_steps(self) -> int:
        return steps_per_epoch(self.epoch_rows, self.spec.job.global_batch_size)

    @property
    def steps_total(self) -> int:
        return steps_of(self.spec, self.epoch_rows)

    def position(self, step: int) -> Position:
        return position_of_step(
            step,
            global_batch_size=self.spec.job.global_batch_size,
            length=self.epoch_rows,
        )

    def global_rows(self, step: int) -> int:
        left = self.epoch_rows - self.position(step).offset
        return min(self.spec.job.global_batch_size, left)

    def share(self, step: int, *, rank: int, world_size: int) -> Share:
        """Return a rank's slice of a step, divided into micro-batches."""
        position, global_rows = self.position(step), self.global_rows(step)
        sharing = self._sharing(global_rows, world_size)
        start, stop = self.slice_of(global_rows, rank=rank, world_size=sharing)
        rows = tuple(self._rows(step)[start:stop].tolist())
        parts = self.spec.train.grad_accumulation
        requests, first_rows = [], []
        for part in range(parts):
            begin, end = slice_bounds(stop - start, parts, part)
            if begin < end:
                requests.append(
                    BatchRequest(
                        step=step * parts + part, epoch=position.epoch, rows=rows[begin:end]
                    )
                )
                first_rows.append(start + begin)
        return Share(
            requests=tuple(requests),
            first_rows=tuple(first_rows),
            rows=stop - start,
            global_rows=global_rows,
            counts=rank == sharing - 1,
        )

    def slice_of(self, rows: int, *, rank: int, world_size: int) -> tuple[int, int]:
        """Return start and stop of a rank's slice of any rows, by its speed if there are enough."""
        if rank >= world_size:
            return 0, 0
        if len(self.costs) == world_size and applies(rows, world_size, self.least_rows):
            bounds = starts(rows, self.costs, self.least_rows)
            return bounds[rank], bounds[rank + 1]
        return slice_bounds(rows, world_size, rank)

    @property
    def least_rows(self) -> int:
        """Fewest rows of a rank where rows are divided by speed: two in each micro-batch.

        So BatchNorm has a variance, and as many micro-batches are on every rank as with equal
        slices, which strategies count on.
        """
        return 2 * self.spec.train.grad_accumulation

    def divides(self, step: int) -> bool:
        """Whether the division of rows is reconsidered after `step` steps."""
        return self.rounds.crossed(step, DECIDE_EVERY_STEPS)

    def most_parts(self, step: int, world_size: int) -> int:
        """Return the most micro-batches that any rank has in a step; others may have fewer."""
        global_rows = self.global_rows(step)
        rows = -(-global_rows // self._sharing(global_rows, world_size))
        return min(self.spec.train.grad_accumulation, rows)

    def round(self, step: int) -> range:
        """Return the steps that are committed together, beginning with `step`."""
        return range(step, self.rounds.end(step, self.steps_total))

    def checksum(self, step: int) -> int:
        """Return the checksum of `dtd.train.data.rows` if exactly a step's rows were used."""
        return checksum(self.position(step).epoch, self._rows(step))

    def _rows(self, step: int) -> Rows:
        epoch, start = self.position(step).epoch, self.position(step).offset
        stop = start + self.global_rows(step)
        return self.order.rows(self.order_seed(epoch), epoch, start, stop)

    def _sharing(self, global_rows: int, world_size: int) -> int:
        """Return how many ranks share a global batch: all, unless slices would be too small."""
        if self.smallest_rows == 1:
            return world_size
        least = self.smallest_rows * self.spec.train.grad_accumulation
        return max(1, min(world_size, global_rows // least))

    def requests(self, *, rank: int, world_size: int) -> Callable[[int], BatchRequest | None]:
        """Return a function that maps a request's number to the next request, for the loader.

        It looks `LOOK_AHEAD_STEPS` ahead: a parameter server, or a rank beyond the rows of a batch,
        has none in any step.  What comes later is loaded when it is asked for.
        """
        parts = self.spec.train.grad_accumulation

        def next_request(number: int) -> BatchRequest | None:
            first = number // parts
            for step in range(first, min(first + LOOK_AHEAD_STEPS, self.steps_total)):
                for request in self.share(step, rank=rank, world_size=world_size).requests:
                    if request.step >= number:
                        return request
            return None

        return next_request

    def request_number(self, step: int) -> int:
        return step * self.spec.train.grad_accumulation

    def has_single_rows(self, world_size: int) -> bool:
        """Whether some micro-batch has one row if all of so many ranks have rows."""
        parts = self.spec.train.grad_accumulation
        fewest = min(map(self.global_rows, self._first_and_last))
        return fewest < 2 * parts * world_size

    def check_slices(self) -> None:
        """Check that a single worker has enough rows in every step; then more workers do, too."""
        if self.smallest_rows == 1:
            return
        for step in self._first_and_last:
            requests = self.share(step, rank=0, world_size=1).requests
            rows = min(len(request.rows) for request in requests)
            if rows < self.smallest_rows:
                raise TaskError(
                    f"a micro-batch of step {step} has {rows} row, and the model needs"
                    f" {self.smallest_rows} at least: its BatchNorm has no variance of one value",
                    remedy="change job.global_batch_size, so that the last batch of an epoch is"
                    " larger, leave that batch out with row_order(), lower train.grad_accumulation,"
                    " or use GroupNorm",
                )

    @property
    def _first_and_last(self) -> list[int]:
        """Steps of an epoch that differ in the number of their rows."""
        return sorted({0, min(self.epoch_steps, self.steps_total) - 1})

    def evaluation_due(self, step: int) -> bool:
        """Whether the state after `step` steps is evaluated."""
        if step == 0:
            return False
        every = self.spec.train.eval_every or self.epoch_steps
        return step >= self.steps_total or self.rounds.crossed(step, every)

    def digest_due(self, step: int) -> bool:
        """Whether ranks compare the digest of the state after `step` steps."""
        every = self.spec.train.digest_every
        return every > 0 and self.rounds.crossed(step, every)

    def checkpoint_due(self, step: int) -> bool:
        """Whether the state after `step` steps is saved."""
        every = self.spec.checkpoint.every_steps or self.epoch_steps
        return step >= self.steps_total or self.rounds.crossed(step, every)
