"""When a state is saved and when it may be trusted: the training thread's side of checkpoints.

After a step that is due every rank takes the digest of its state; rank 0 also copies the state and
lets it be written.  The digest travels in the next exchange.  If all ranks have the same one the
draft is published, else nothing is and the job fails: replicas have diverged.  A rank that does
not write takes part in the agreement all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dtd.errors import CheckpointError
from dtd.job import JobSpec
from dtd.train.checkpoint_format import (
    FORMAT,
    MODEL_FILE,
    OPTIMIZER_FILE,
    Manifest,
    checkpoint_name,
    verify,
)
from dtd.train.checkpoint_writer import CheckpointWriter, Draft, Failure, RawTensor
from dtd.train.record import CheckpointRecord, Reporter
from dtd.train.reduce import tensor_bytes
from dtd.train.replica import Replica
from dtd.train.state import MODEL, digest_of, dtype_name, metadata, named_tensors, state_digest

_PATIENCE_S = 1.0
"""How long a checkpoint that is merely due waits for an earlier one to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A digest on which ranks have not agreed yet."""

    step: int
    digest: bytes


class Checkpoints:
    """One job's checkpoints on this worker.

    Args:
        spec: the job.
        job_id: its id.
        directory: where all jobs' checkpoints are.
        reporter: hears of published ones and of failures.
    """

    def __init__(self, *, spec: JobSpec, job_id: str, directory: Path, reporter: Reporter) -> None:
        self._spec = spec
        self._job_id = job_id
        self._reporter = reporter
        self._writer = CheckpointWriter(
            directory / job_id, keep=spec.checkpoint.keep, best_metric=spec.checkpoint.best_metric
        )
        self.pending: Pending | None = None
        self.parent = ""
        self._metrics: tuple[int, Mapping[str, float]] = (-1, {})
        self._saved_step = -1
        self._draft_step = -1
        self._draft_name = ""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the state after `step` steps, for its manifest."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._metrics = (step, finite)

    def take(
        self, replica: Replica, *, generation: int, world_size: int, writes: bool, waits: bool
    ) -> None:
        """Take the digest of the state, and write a draft of it.

        Args:
            replica: the state; may change as soon as this returns.
            generation: goes into the name.
            world_size: goes into the manifest.
            writes: this rank is the one that writes.
            waits: finish an earlier write first however long it takes, instead of leaving this
                one out: a disk that hangs must not hold up training.
        """
        if not writes:
            self.pending = Pending(step=replica.step, digest=state_digest(replica))
            return
        tensors = {name: _copy(tensor) for name, tensor in named_tensors(replica).items()}
        about = metadata(replica)
        digest = digest_of(tensors, about)
        self.pending = Pending(step=replica.step, digest=digest)
        name = checkpoint_name(generation, replica.step)
        if not self._writer.idle_within(None if waits else _PATIENCE_S):
            self._reporter.warning(
                "checkpoint_left_out", f"{name} was not written: an earlier one still is"
            )
            return
        self._draft_step, self._draft_name = replica.step, name
        manifest = Manifest(
            **self._about_job(),
            generation=generation,
            step=replica.step,
            epoch=replica.epoch,
            offset=replica.offset,
            digest=digest.hex(),
            world_size=world_size,
            state=about,
            tensors=tuple(tensors),
        )
        self._writer.write(Draft(manifest=manifest, files=_files(tensors)))

    def _about_job(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "job": self._job_id,
            "job_name": self._spec.job.name,
            "task": self._spec.job.task,
            "parent": self.parent,
            "metrics": {},
            "files": {},
        }

    def agreed(self) -> None:
        """All ranks hold the pending digest: publish the draft, if this rank wrote one."""
        if self.pending is not None and self.pending.step == self._draft_step:
            step, metrics = self._metrics
            self._writer.publish(metrics if step == self.pending.step else {})
            self._saved_step, self._draft_step = self.pending.step, -1
            self.parent = self._draft_name
        self.pending = None

    def settle(self, step: int, digest: bytes) -> None:
        """All ranks hold `digest` after `step` steps; whatever else was pending is dropped."""
        if self.pending == Pending(step=step, digest=digest):
            self.agreed()
        else:
            self.drop()

    def drop(self) -> None:
        """Nobody will agree on what is pending."""
        self.pending = None
        self._draft_step = -1
        self._writer.discard()

    def holds(self, step: int) -> bool:
        """Whether this process published the state after `step` steps."""
        return self._saved_step == step

    def poll(self) -> None:
        """Report what the writer has finished; does not wait."""
        for result in self._writer.finished():
            if isinstance(result, Failure):
                self._saved_step = -1
                self._reporter.warning(
                    "checkpoint_failed", f"{result.name} was not saved: {result.reason}"
                )
                continue
            self._reporter.checkpoint_saved(
                CheckpointRecord(
                    job_id=self._job_id,
                    generation=result.manifest.generation,
                    step=result.manifest.step,
                    digest=result.manifest.digest,
                    directory=str(result.path),
                    size_bytes=result.size_bytes,
                    metrics=dict(result.manifest.metrics),
                    kept=result.kept,
                )
            )

    def flush(self) -> None:
        """Wait for what was agreed on, and report it."""
        self._writer.flush()
        self.poll()

    def close(self) -> None:
        """Leave nothing running and no draft behind."""
        self._writer.close()
        self.poll()


def read_checkpoint(path: Path) -> tuple[Manifest, dict[str, Tensor]]:
    """A checkpoint's manifest and tensors, verified down to the state's digest.

    Raises:
        CheckpointError: it is torn or damaged.
    """
    manifest = verify(path)
    try:
        model = safetensors.torch.load_file(path / MODEL_FILE)
        stored = {MODEL + name: tensor for name, tensor in model.items()}
        stored |= safetensors.torch.load_file(path / OPTIMIZER_FILE)
        tensors = {name: stored[name] for name in manifest.tensors}
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    if digest_of(tensors, manifest.state).hex() != manifest.digest:
        raise CheckpointError(f"{path} does not match its digest")
    return manifest, tensors


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _files(tensors: Mapping[str, Tensor]) -> dict[str, list[RawTensor]]:
    files: dict[str, list[RawTensor]] = {MODEL_FILE: [], OPTIMIZER_FILE: []}
    for name, tensor in tensors.items():
        raw = RawTensor(
            name=name.removeprefix(MODEL),  # as the model's own state_dict() calls it
            dtype=dtype_name(name, tensor.dtype),
            shape=tuple(tensor.shape),
            content=tensor_bytes(tensor),
        )
        files[MODEL_FILE if name.startswith(MODEL) else OPTIMIZER_FILE].append(raw)
    return files
