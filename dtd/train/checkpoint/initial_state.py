"""The source of a worker's state when memory holds none: checkpoints of this or another job.

The job's own newest checkpoint that verifies comes first, then that of the job it starts from
(`InitFrom`), whole or its weights only.  Damaged ones are passed over with a warning.  Which
worker's checkpoint is used is decided by the coordinator.

Where the state is sharded, a checkpoint here is this worker's part of it.  Others may lack theirs
of the newest one, and the job may go on from an older one: this worker offers all that it has.  A
part of another job's checkpoint, or none where it is on parameter servers, is not enough to start
from: the other parts are fetched first (`dtd.worker.collect`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from dtd.checkpoint.format import (
    ORIGIN,
    Found,
    Manifest,
    checkpoint_name,
    list_checkpoints,
    newest_verified,
    read_manifest,
    verify,
)
from dtd.engine.sampler import Position
from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.job import JobSpec
from dtd.job.identity import folder_of
from dtd.train.checkpoint.first_weights import take_weights
from dtd.train.checkpoint.load import read_stored
from dtd.train.record import HeldState, InitFrom, Reporter
from dtd.train.session import JobSession


def checkpoint_directory(spec: JobSpec, state_dir: Path) -> Path:
    """Return a worker's directory of checkpoints for this job, also of those it may start from."""
    return Path(spec.checkpoint.directory or state_dir / "checkpoints")


class Origin:
    """The checkpoints from which one job may start or continue.

    Args:
        job_id: the job.
        identity: tells it from others of the same id.
        init_from: another job's checkpoint; None if it begins fresh.
        directory: where all jobs' checkpoints are.
        reporter: told once of each checkpoint that is skipped.
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
        self._folder = directory / folder_of(job_id, identity)

    def held(self) -> HeldState:
        """Return the state on this disk; step 0 where only weights are taken over."""
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
            part=found.manifest.shards,
        )

    def older(self) -> tuple[HeldState, ...]:
        """This worker's parts of older checkpoints of the job, newest first.

        They are verified when they are loaded: until then only their manifests are read.
        """
        held = []
        for path in list_checkpoints(self._directory, self._folder.name):
            manifest = None if path in self._warned else self._readable(path)
            if manifest is not None and manifest.part is not None:
                held.append(
                    HeldState(
                        job_id=self._job_id,
                        generation=manifest.generation,
                        step=manifest.step,
                        digest=manifest.digest,
                        where="checkpoint",
                        label=f"step {manifest.step} in {path}",
                        part=manifest.shards,
                    )
                )
        return tuple(held)

    def load(self, session: JobSession, generation: int, step: int) -> None:
        """Load the state that `held` returned.

        Raises:
            CheckpointError: this worker does not hold it, or it does not fit the job.
        """
        job_id, found = self._offered(generation, step)
        if found.path is None or found.manifest is None:
            raise CheckpointError(f"job {self._job_id} has no sound checkpoint here")
        weights_only = self._weights_only(job_id)
        key = (found.manifest.generation, 0 if weights_only else found.manifest.step)
        if key != (generation, step):
            raise CheckpointError(
                f"step {step} of generation {generation} was asked for; the newest sound"
                f" checkpoint here is {found.path}"
            )
        progress = self._reporter.progress
        # A divided state is copied into slices when its generation begins.
        stored = read_stored(found.path, progress, mapped=session.replica.shards is not None)
        if weights_only:
            session.reset()
            take_weights(
                session.replica,
                stored.tensors,
                source=f"step {found.manifest.step} of {job_id}",
                strict=self._strict,
                reporter=self._reporter,
                progress=progress,
            )
            return
        stored.give(session.replica, progress)
        if job_id == self._job_id:
            parts_of = 0 if stored.manifest.part is None else stored.manifest.world_size
            session.checkpoints.loaded(StateKey(generation, step), parts_of, stored.manifest.shards)
        else:
            session.checkpoints.parent = found.path.name
            session.replica.ended_of = 0
        check_position(session)

    def _weights_only(self, job_id: str) -> bool:
        origin = self._init_from
        return origin is not None and origin.mode == "weights" and job_id != self._job_id

    def _offered(self, generation: int, step: int) -> tuple[str, Found]:
        """(whose it is, the checkpoint of this key): the newest, or a part of an older one."""
        path = self._folder / checkpoint_name(generation, step)
        if path in self._warned or not path.is_dir():
            return self._newest()
        manifest = self._readable(path)
        if manifest is None or manifest.part is None:
            return self._newest()
        try:
            manifest = verify(path, self._reporter.progress)
        except CheckpointError as error:
            self._pass_over(path, error.message)
            return self._newest()
        return self._job_id, Found(path=path, manifest=manifest, passed_over=())

    def _readable(self, path: Path) -> Manifest | None:
        """The manifest of a checkpoint of this job; None if it is damaged or another job's."""
        with contextlib.suppress(CheckpointError):
            manifest = read_manifest(path)
            if manifest.identity == self._identity:
                return manifest
        return None

    def _newest(self) -> tuple[str, Found]:
        """(whose it is, the newest whole one that verifies, or this worker's part of its own)."""
        found = self._search(self._directory, self._job_id, self._identity, None)
        origin = self._init_from
        if found.path is not None or origin is None:
            return self._job_id, found
        wanted = (origin.job_id, origin.identity, origin.step)
        found = self._search(self._directory, *wanted)
        if found.manifest is None or found.manifest.part is not None:
            found = self._search(self._folder / ORIGIN, *wanted)
        return origin.job_id, found

    def incomplete(self) -> tuple[Path | None, Path] | None:
        """Return where a checkpoint is that has to be assembled before the job starts from it.

        Returns:
            the path of this worker's part, None if it has none, and the directory for the whole
            checkpoint, assembled with the parts of other workers; None if nothing is to be
            assembled.
        """
        origin = self._init_from
        if origin is None or self._newest()[1].path is not None:
            return None
        found = self._search(self._directory, origin.job_id, origin.identity, origin.step)
        return found.path, self._folder / ORIGIN / folder_of(origin.job_id, origin.identity)

    def _search(self, directory: Path, job_id: str, identity: str, step: int | None) -> Found:
        found = newest_verified(
            directory,
            job_id,
            identity=identity,
            step=step,
            progress=self._reporter.progress,
        )
        for path, why in found.passed_over:
            self._pass_over(path, why)
        return found

    def _pass_over(self, path: Path, why: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            self._reporter.warning("checkpoint_passed_over", f"{path}: {why}")


def check_position(session: JobSession) -> None:
    """Check that the live state continues with the same rows, in batches of the same size.

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
