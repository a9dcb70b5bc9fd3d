"""Where a worker's state comes from when memory holds none: checkpoints of the job, or of another.

The job's own newest checkpoint that verifies comes first, then that of the job it starts from
(`InitFrom`), whole or its weights only.  Damaged ones are passed over with a warning.  Which
worker's checkpoint is used is decided by the coordinator.
"""

from __future__ import annotations

from pathlib import Path

from dtd.core.data.sampler import Position
from dtd.core.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.job import JobSpec
from dtd.train.checkpoint.first_weights import take_weights
from dtd.train.checkpoint.format import Found, newest_verified
from dtd.train.checkpoint.saver import read_checkpoint
from dtd.train.early_stop import NOTHING_SEEN
from dtd.train.record import HeldState, InitFrom, Reporter
from dtd.train.session import Session
from dtd.train.state.tensors import load_state


def checkpoint_directory(spec: JobSpec, state_dir: Path) -> Path:
    """Where a worker keeps the checkpoints of this job and looks for those it may start from."""
    return Path(spec.checkpoint.directory or state_dir / "checkpoints")


class Origin:
    """The checkpoints that one job may begin or go on with.

    Args:
        job_id: the job.
        identity: tells it from others of the same id.
        init_from: another job's checkpoint; None if it begins fresh.
        directory: where all jobs' checkpoints are.
        reporter: hears once of each checkpoint that is passed over.
        strict: weights that are taken over alone must all fit.
    """

    def __init__(
        self,
        *,
        job_id: str,
        identity: str,
        init_from: InitFrom | None,
        directory: Path,
        reporter: Reporter,
        strict: bool = True,
    ) -> None:
        self._strict = strict
        self._job_id = job_id
        self._identity = identity
        self._init_from = init_from
        self._directory = directory
        self._reporter = reporter
        self._warned: set[Path] = set()

    def held(self) -> HeldState:
        """What is on this disk; step 0 where only weights are taken over."""
        job_id, found = self._newest()
        if found.path is None or found.manifest is None:
            return HeldState(
                job_id=self._job_id, generation=0, step=0, digest="", where="none", label="nothing"
            )
        return HeldState(
            job_id=job_id,
            generation=found.manifest.generation,
            step=0 if self._weights_only(job_id) else found.manifest.step,
            digest=found.manifest.digest,
            where="checkpoint",
            label=f"step {found.manifest.step} in {found.path}",
        )

    def load(self, session: Session, generation: int, step: int) -> None:
        """Make what `held` said the live state.

        Raises:
            CheckpointError: this worker does not hold it, or it does not fit the job.
        """
        job_id, found = self._newest()
        if found.path is None or found.manifest is None:
            raise CheckpointError(f"job {self._job_id} has no sound checkpoint here")
        weights_only = self._weights_only(job_id)
        key = (found.manifest.generation, 0 if weights_only else found.manifest.step)
        if key != (generation, step):
            raise CheckpointError(
                f"step {step} of generation {generation} was asked for; the newest sound"
                f" checkpoint here is {found.path}"
            )
        got_on = self._reporter.progress
        manifest, tensors = read_checkpoint(found.path, got_on)
        if weights_only:
            session.reset()
            take_weights(
                session.replica,
                tensors,
                source=f"step {found.manifest.step} of {job_id}",
                strict=self._strict,
                reporter=self._reporter,
                got_on=got_on,
            )
            return
        load_state(session.replica, tensors, manifest.state, got_on)
        if job_id == self._job_id:
            session.checkpoints.loaded(StateKey(generation, step))
        else:
            session.checkpoints.parent = found.path.name
            session.replica.ended_of, session.replica.early_stop = 0, NOTHING_SEEN
        check_position(session)

    def _weights_only(self, job_id: str) -> bool:
        origin = self._init_from
        return origin is not None and origin.mode == "weights" and job_id != self._job_id

    def _newest(self) -> tuple[str, Found]:
        """(whose it is, the newest that verifies)."""
        found, origin = self._search(self._job_id, self._identity, None), self._init_from
        if found.path is not None or origin is None:
            return self._job_id, found
        return origin.job_id, self._search(origin.job_id, origin.identity, origin.step)

    def _search(self, job_id: str, identity: str, step: int | None) -> Found:
        found = newest_verified(
            self._directory,
            job_id,
            identity=identity,
            step=step,
            got_on=self._reporter.progress,
        )
        for path, why in found.passed_over:
            if path not in self._warned:
                self._warned.add(path)
                self._reporter.warning("checkpoint_passed_over", f"{path}: {why}")
        return found


def check_position(session: Session) -> None:
    """A state goes on only over the same rows in batches of the same size, and not past the end.

    Raises:
        CheckpointError: the live state is at another place than the job's plan has it.
    """
    replica = session.replica
    if replica.step > session.plan.steps_total:
        raise CheckpointError(
            f"the state to start from has {replica.step} steps, and this job ends after"
            f" {session.plan.steps_total}",
            remedy="raise job.steps or job.epochs, or start from its weights only",
        )
    expected = session.plan.position(replica.step)
    own = Position(replica.epoch, replica.offset)
    if replica.ledger.length != session.plan.epoch_rows or expected != own:
        raise CheckpointError(
            f"step {replica.step} of the state is row {own.offset} of epoch {own.epoch} over"
            f" {replica.ledger.length} rows; in this job it is row {expected.offset} of epoch"
            f" {expected.epoch} over {session.plan.epoch_rows}",
            remedy="keep the data and job.global_batch_size, or start from its weights only",
        )
