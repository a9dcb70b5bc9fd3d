"""One job in one worker, as the worker sees it: warm up, hold a state, take one over, train.

    prepare -> held -> adopt_local | import_state, finish_import -> run -> held -> ...

A state lives in memory once a generation has begun with it.  When a ring breaks, memory holds the
last committed step, and perhaps one more that is prepared: `adopt_local` commits it if that is
what the next generation starts from, and discards it otherwise.  All methods are called from the
training thread.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from dtd.core.collective import Collective
from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.fingerprint import dataset_fingerprint
from dtd.train.image import IncomingImage, export_image
from dtd.train.loop import train
from dtd.train.numerics import numerics_fingerprint
from dtd.train.origin import Origin, check_position, checkpoint_directory
from dtd.train.record import (
    HeldState,
    InitFrom,
    Outcome,
    Reporter,
    Requests,
    StateImage,
    WarmupReport,
)
from dtd.train.replica import reset_replica
from dtd.train.session import Session, build_session
from dtd.train.state import named_tensors, state_digest
from dtd.train.step import commit
from dtd.train.task import load_task

_STATE_FACTOR = 16
_STATE_SLACK_BYTES = 64 << 20


class TrainingRun:
    """One job's training in this process.

    Args:
        spec: the job.
        job_id: its id.
        init_from: another job's checkpoint to begin with; None begins fresh.
        device: "cpu" or "cuda:N".
        state_dir: where checkpoints are kept unless the job names a directory.
        reporter: hears of progress.
        requests: what is asked of this rank.
        threads: CPU threads of torch; 0 takes the job's `train.threads`.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        job_id: str,
        init_from: InitFrom | None,
        device: str,
        state_dir: Path,
        reporter: Reporter,
        requests: Requests,
        threads: int = 0,
    ) -> None:
        self._spec = spec
        self._job_id = job_id
        self._device = torch.device(device)
        self._directory = checkpoint_directory(spec, state_dir)
        self._origin = Origin(
            job_id=job_id, init_from=init_from, directory=self._directory, reporter=reporter
        )
        self._reporter = reporter
        self._requests = requests
        self._threads = threads or spec.train.threads
        self._generation = 0
        self._touched = False
        self._built: Session | None = None
        self._incoming: IncomingImage | None = None

    # --- warm-up ---------------------------------------------------------------------------

    def prepare(self) -> WarmupReport:
        """Import the task, build the model, open the data.

        Raises:
            TaskError: one of them does not work.
        """
        torch.set_num_threads(self._threads)
        task = load_task(self._spec.job.task, self._spec.task)
        session = self._built = build_session(
            spec=self._spec,
            job_id=self._job_id,
            task=task,
            device=self._device,
            checkpoint_directory=self._directory,
            reporter=self._reporter,
            requests=self._requests,
        )
        return WarmupReport(
            dataset_rows=len(session.dataset),
            dataset_fingerprint=dataset_fingerprint(session.dataset, self._spec.job.seed),
            plan_digest=_plan_digest(session),
            numerics_fingerprint=numerics_fingerprint(self._spec.optimizer, self._device),
            parameters=sum(parameter.numel() for _, parameter in session.replica.trained),
            steps_total=session.plan.steps_total,
        )

    # --- state -----------------------------------------------------------------------------

    @property
    def committed_step(self) -> int:
        """Committed steps of the live state."""
        return self._session.replica.step

    @property
    def prepared_step(self) -> int:
        """`committed_step`, or one more if the next step waits for nothing but its verdict."""
        return self.committed_step + self._session.prepared

    def held(self) -> HeldState:
        """The best state that this worker holds for the job."""
        if self._generation > 0:
            step = self.committed_step
            return HeldState(
                job_id=self._job_id,
                generation=self._generation,
                step=step,
                digest=state_digest(self._session.replica).hex(),
                where="memory",
                label=f"step {step} in memory",
            )
        return self._origin.held()

    def adopt_local(self, held_generation: int, held_step: int) -> None:
        """Make a state that this worker holds the live one.

        Args:
            held_generation: its generation; 0 is the fresh state.
            held_step: its committed steps; one more than is committed commits the prepared step.

        Raises:
            CheckpointError: this worker does not hold it.
        """
        session = self._session
        if self._generation > 0 and session.prepared and held_step == self.prepared_step:
            commit(session)
            return
        session.discard()
        if self._generation > 0 and held_step == self.committed_step:
            return
        if held_generation > 0:
            self._origin.load(session, held_generation, held_step)
        elif self._touched:
            reset_replica(session.replica, session.task, self._spec, self._device)
        self._touched = held_generation > 0
        self._generation = 0

    def export_state(self) -> StateImage:
        """The live state for another worker; valid until the next step begins."""
        return export_image(self._session.replica, generation=self._generation)

    def import_state(self, manifest: bytes) -> list[memoryview]:
        """Memory to receive another worker's state into, blob by blob.

        Raises:
            CheckpointError: the manifest is broken or of another model.
        """
        tensors = named_tensors(self._session.replica).values()
        own_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        limit_bytes = own_bytes * _STATE_FACTOR + _STATE_SLACK_BYTES
        self._incoming = IncomingImage(manifest, limit_bytes=limit_bytes)
        return self._incoming.blobs()

    def finish_import(self) -> None:
        """Every blob is received: make the state the live one.

        Raises:
            CheckpointError: it was damaged on the way, or is of another model.
        """
        assert self._incoming is not None, "finish_import() without import_state()"
        incoming, self._incoming = self._incoming, None
        session = self._session
        session.discard()
        self._touched = True
        incoming.apply(session.replica)
        check_position(session)
        self._generation = incoming.generation

    # --- training --------------------------------------------------------------------------

    def run(self, collective: Collective, generation: int) -> Outcome:
        """Train in one generation until the job or the generation ends.

        Raises:
            RingBroken: the generation is over; the state is that of the last committed step.
            DivergenceError: ranks hold different states.
            TaskError: the task or its data failed; anything else that the task raises, too.
        """
        session = self._session
        session.discard()
        self._check_slices(collective.world_size)
        self._touched = True
        self._generation = generation
        try:
            return train(session, collective)
        except BaseException:
            if not session.prepared:
                session.discard()
            raise

    def close(self) -> None:
        """Leave nothing running and no draft behind."""
        if self._built is not None:
            self._built.close()
            self._built = None

    # --- inside ----------------------------------------------------------------------------

    @property
    def _session(self) -> Session:
        assert self._built is not None, "prepare() comes first"
        return self._built

    def _check_slices(self, world_size: int) -> None:
        plan, modules = self._session.plan, self._session.replica.model.modules()
        if not any(isinstance(module, torch.nn.BatchNorm1d) for module in modules):
            return
        if plan.steps_total and plan.smallest_slice(world_size) < 2:
            raise TaskError(
                f"with {world_size} workers some slices have a single row, too few for the"
                " model's BatchNorm1d",
                remedy="raise job.global_batch_size or lower elastic.max_workers"
                " or train.grad_accumulation",
            )


def _plan_digest(session: Session) -> str:
    """Hash of what travels in a step, to be compared between workers."""
    content = hashlib.blake2b(session.bucket_plan.digest().encode(), digest_size=16)
    for name in session.buffers.names:
        content.update(f"{name} {session.replica.model.get_buffer(name).shape}\n".encode())
    return content.hexdigest()
