"""What every step of a job does, as a function of the step alone: rows, slices, what falls due.

Every worker computes the same plan from the job and the order of its rows.  It knows rows by
number only; loading them is `dtd.train.data.loader`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dtd.core.data.ledger import Ledger
from dtd.core.data.sampler import Position, position_of_step, slice_bounds, steps_per_epoch
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.data.rows import BatchRequest
from dtd.train.data.sampling import Order, Rows
from dtd.train.data.used_rows import checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's part of one step.

    Attributes:
        requests: its micro-batches, those without rows left out.
        first_rows: place of each micro-batch's first row in the global batch.
        rows: its rows.
        global_rows: rows of the global batch.
        counts: its micro-batches are the ones by which the model counts batches; of one rank alone.
    """

    requests: tuple[BatchRequest, ...]
    first_rows: tuple[int, ...]
    rows: int
    global_rows: int
    counts: bool


def steps_of(spec: JobSpec, epoch_rows: int) -> int:
    """Steps of a whole job whose epochs use so many rows."""
    if spec.job.steps is not None:
        return spec.job.steps
    return (spec.job.epochs or 0) * steps_per_epoch(epoch_rows, spec.job.global_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Steps of one job over one dataset.

    Attributes:
        spec: the job.
        order: which row stands at which place of an epoch.
        smallest_rows: with fewer rows the model cannot compute; a micro-batch has as many at least,
            if need be because other ranks have none.
        begun: an epoch of which another job has used a part, and that job's seed: the rest of it
            follows the same order, or rows would be used twice and others never.
    """

    spec: JobSpec
    order: Order
    smallest_rows: int = 1
    begun: tuple[int, int] | None = None

    def following(self, ledger: Ledger) -> JobPlan:
        """The plan for a state with this ledger."""
        seed, begun = ledger.seed, None
        if ledger.committed and seed is not None and seed != self.spec.job.seed:
            begun = (ledger.epoch, seed)
        return replace(self, begun=begun)

    def order_seed(self, epoch: int) -> int:
        """The seed whose order an epoch follows."""
        if self.begun is not None and epoch == self.begun[0]:
            return self.begun[1]
        return self.spec.job.seed

    @property
    def epoch_rows(self) -> int:
        """Rows that one epoch uses."""
        return self.order.places

    @property
    def epoch_steps(self) -> int:
        """Steps of one epoch."""
        return steps_per_epoch(self.epoch_rows, self.spec.job.global_batch_size)

    @property
    def steps_total(self) -> int:
        """Steps of the whole job."""
        return steps_of(self.spec, self.epoch_rows)

    def position(self, step: int) -> Position:
        """Where in the data a step begins."""
        return position_of_step(
            step,
            global_batch_size=self.spec.job.global_batch_size,
            length=self.epoch_rows,
        )

    def global_rows(self, step: int) -> int:
        """Rows of a step's global batch."""
        left = self.epoch_rows - self.position(step).offset
        return min(self.spec.job.global_batch_size, left)

    def share(self, step: int, *, rank: int, world_size: int) -> Share:
        """A rank's slice of a step, cut into micro-batches."""
        position, global_rows = self.position(step), self.global_rows(step)
        sharing = self._sharing(global_rows, world_size)
        start, stop = slice_bounds(global_rows, sharing, rank) if rank < sharing else (0, 0)
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

    def checksum(self, step: int) -> int:
        """What `dtd.train.data.used_rows` finds for a step in which exactly its rows were used."""
        return checksum(self.position(step).epoch, self._rows(step))

    def _rows(self, step: int) -> Rows:
        """Rows of a step's global batch."""
        epoch, start = self.position(step).epoch, self.position(step).offset
        stop = start + self.global_rows(step)
        return self.order.rows(self.order_seed(epoch), epoch, start, stop)

    def _sharing(self, global_rows: int, world_size: int) -> int:
        """How many ranks share a global batch: all, unless slices became too small."""
        if self.smallest_rows == 1:
            return world_size
        least = self.smallest_rows * self.spec.train.grad_accumulation
        return max(1, min(world_size, global_rows // least))

    def requests(self, *, rank: int, world_size: int) -> Callable[[int], BatchRequest | None]:
        """What the loader is asked for next, whatever number it is at."""
        parts = self.spec.train.grad_accumulation

        def next_request(number: int) -> BatchRequest | None:
            for step in range(number // parts, self.steps_total):
                for request in self.share(step, rank=rank, world_size=world_size).requests:
                    if request.step >= number:
                        return request
            return None

        return next_request

    def request_number(self, step: int) -> int:
        """Number of a step's first request."""
        return step * self.spec.train.grad_accumulation

    def check_slices(self) -> None:
        """See that a single worker has rows enough in every step; more workers then have as well.

        Raises:
            TaskError: it has not.
        """
        if self.smallest_rows == 1:
            return
        for step in sorted({0, min(self.epoch_steps, self.steps_total) - 1}):
            requests = self.share(step, rank=0, world_size=1).requests
            rows = min(len(request.rows) for request in requests)
            if rows < self.smallest_rows:
                raise TaskError(
                    f"a micro-batch of step {step} has {rows} row, and the model needs"
                    f" {self.smallest_rows} at least",
                    remedy="change job.global_batch_size, so that the last batch of an epoch is"
                    " larger, or lower train.grad_accumulation",
                )

    def evaluation_due(self, step: int) -> bool:
        """Whether the state after `step` steps is evaluated."""
        if step == 0:
            return False
        return (
            step >= self.steps_total or step % (self.spec.train.eval_every or self.epoch_steps) == 0
        )

    def digest_due(self, step: int) -> bool:
        """Whether ranks compare the digest of the state after `step` steps."""
        every = self.spec.train.digest_every
        return every > 0 and step % every == 0

    def checkpoint_due(self, step: int) -> bool:
        """Whether the state after `step` steps is saved."""
        every = self.spec.checkpoint.every_steps or self.epoch_steps
        return step >= self.steps_total or (step > 0 and step % every == 0)
