"""When a state is saved and when it may be trusted: the training thread's side of checkpoints.

After a step that is due every rank takes the digest of its state; those that write also copy the
state and let it be written.  The digest travels in the next exchange.  If all ranks have the same
one the draft is published, else nothing is: replicas have diverged.  A rank that does not write
takes part in the agreement all the same.  Whatever the disk does, training goes on and the
operator is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from dtd.core.engine.deferred_digest import DeferredDigest
from dtd.core.engine.step_protocol import StateKey
from dtd.core.membership.branches import Branch
from dtd.errors import CheckpointError
from dtd.job import JobSpec
from dtd.job.identity import folder_of
from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.bulk import copied_to_host
from dtd.train.checkpoint.format import (
    AVERAGES_FILE,
    FORMAT,
    MODEL_FILE,
    OPTIMIZER_FILE,
    Manifest,
    checkpoint_name,
    verify,
)
from dtd.train.checkpoint.retention import rules_of
from dtd.train.checkpoint.writer import CheckpointWriter, Draft, Failure, RawTensor
from dtd.train.record import CheckpointRecord, GotOn, Reporter, WarningThrottle, nobody
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    AVERAGE,
    MODEL,
    digest_of,
    dtype_name,
    metadata,
    named_tensors,
    state_digest,
)

_PATIENCE_S = 1.0
"""How long a checkpoint that is merely due waits for an earlier one to be written."""

_LOOK_EVERY_S = 0.25
_DISK_PATIENCE_S = 60.0
"""A disk that has not taken a byte for so long is no reason to wait: the thread counts as stuck."""

_NOTHING_SAVED = StateKey(-1, -1)


class Checkpoints:
    """One job's checkpoints on this worker.

    Args:
        spec: the job.
        job_id: its id.
        identity: tells it from others of the same id.
        directory: where all jobs' checkpoints are.
        reporter: hears of published ones and of failures.
        saved: called with what was published.

    Attributes:
        deferred: the digest that ranks compare next.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        job_id: str,
        identity: str,
        directory: Path,
        reporter: Reporter,
        saved: Callable[[CheckpointRecord], None],
    ) -> None:
        self._spec = spec
        self._job_id = job_id
        self._identity = identity
        self._reporter = reporter
        self._tell = saved
        self._warn = WarningThrottle(reporter.warning)
        self._writer = CheckpointWriter(directory / folder_of(job_id, identity), rules_of(spec))
        self.deferred = DeferredDigest()
        self.parent = ""
        self._metrics: tuple[int, Mapping[str, float]] = (-1, {})
        self._saved = self._draft = _NOTHING_SAVED

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the state after `step` steps, for its manifest, written already or not."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._metrics = (step, finite)
        if self._saved.step == step and finite:
            self._writer.add_metrics(checkpoint_name(*self._saved), finite)

    def leave_behind(self, branches: tuple[Branch, ...]) -> None:
        """Checkpoints of these stay, whatever is written from here on."""
        self._writer.branches = branches

    def compare(self, replica: Replica) -> None:
        """Take the digest of the state, without saving it."""
        self.deferred.take(replica.step, self._digest(replica))

    def _digest(self, replica: Replica) -> bytes:
        return state_digest(replica, self._reporter.progress)

    def take(
        self, replica: Replica, *, key: StateKey, world_size: int, writes: bool, waits: bool
    ) -> None:
        """Take the digest of the state, and write a draft of it.

        Args:
            replica: the state; may change as soon as this returns.
            key: its key, which becomes the name.
            world_size: goes into the manifest.
            writes: this rank is one of those that write.
            waits: finish an earlier write first however long it takes, instead of leaving this
                one out: a disk that hangs must not hold up training.
        """
        if not writes:
            self.deferred.take(replica.step, self._digest(replica), key)
            return
        got_on = self._reporter.progress
        live = named_tensors(replica)
        tensors = {name: copied_to_host(tensor, got_on) for name, tensor in live.items()}
        about = metadata(replica)
        digest = digest_of(tensors, about, got_on)
        self.deferred.take(replica.step, digest, key)
        if not self._idle_within(math.inf if waits else _PATIENCE_S):
            name = checkpoint_name(*key)
            self._warn("checkpoint_left_out", f"{name} was not written: an earlier one still is")
            return
        self._draft = key
        manifest = Manifest(
            **self._about_job(),
            generation=key.generation,
            step=key.step,
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
            "identity": self._identity,
            "job_name": self._spec.job.name,
            "task": self._spec.job.task,
            "parent": self.parent,
            "metrics": {},
            "files": {},
        }

    def agreed(self) -> None:
        """All ranks hold the pending digest: say so, and publish what this rank has written."""
        pending = self.deferred.pending
        if pending is not None and pending.key is not None:
            self._reporter.agreed(pending.key, pending.digest)
        self._publish_draft()

    def _publish_draft(self) -> None:
        """Publish what this rank has written, if it is what was pending."""
        pending = self.deferred.settled()
        if pending is not None and pending.step == self._draft.step:
            step, metrics = self._metrics
            self._writer.publish(metrics if step == pending.step else {})
            self._saved, self._draft = self._draft, _NOTHING_SAVED
            self.parent = checkpoint_name(*self._saved)

    def settle(self, step: int, digest: bytes) -> None:
        """All ranks hold `digest` after `step` steps; whatever else was pending is dropped."""
        if self.deferred.matches(step, digest):
            self.agreed()
        else:
            self.drop()

    def drop(self) -> None:
        """Nobody will agree on what is pending."""
        self.deferred.drop()
        self._draft = _NOTHING_SAVED
        self._writer.discard()

    def holds(self, key: StateKey) -> bool:
        """Whether this process published the state of this key."""
        return self._saved == key

    def loaded(self, key: StateKey) -> None:
        """The live state was read from this job's checkpoint of this key."""
        self._saved, self.parent = key, checkpoint_name(*key)

    def save(self, replica: Replica, *, key: StateKey, world_size: int) -> None:
        """Write and publish the state, and wait for that; no other rank is there to agree.

        Raises:
            CheckpointError: it cannot be written.
        """
        self.take(replica, key=key, world_size=world_size, writes=True, waits=True)
        self._publish_draft()
        self._idle_within(math.inf)
        for failure in self._report():
            raise CheckpointError(f"{failure.name} was not saved: {failure.reason}")

    def poll(self) -> None:
        """Report what the writer has finished; does not wait."""
        for failure in self._report():
            self._warn("checkpoint_failed", f"{failure.name} was not saved: {failure.reason}")

    def _report(self) -> list[Failure]:
        """Tell of what was published since the last time; returns what was not."""
        failures: list[Failure] = []
        for result in self._writer.finished():
            if isinstance(result, Failure):
                self._saved = _NOTHING_SAVED
                failures.append(result)
                continue
            record = CheckpointRecord(
                job_id=self._job_id,
                generation=result.manifest.generation,
                step=result.manifest.step,
                digest=result.manifest.digest,
                directory=str(result.path),
                size_bytes=result.size_bytes,
                write_s=result.write_s,
                metrics=dict(result.manifest.metrics),
                kept=result.kept,
            )
            self._reporter.checkpoint_saved(record)
            self._tell(record)
        return failures

    def flush(self) -> None:
        """Wait for what was agreed on, and report it."""
        self._idle_within(math.inf)
        self.poll()

    def close(self) -> None:
        """Leave nothing running and no draft behind; the task hears no more."""
        self._tell = _unheard
        self._writer.close()
        self.poll()

    def _idle_within(self, limit_s: float) -> bool:
        """Wait for the writer, and get on as long as the disk does; says whether it is idle."""
        begun_s = heard_s = now_s = time.monotonic()
        written_bytes = self._writer.written_bytes
        while not self._writer.idle_within(min(_LOOK_EVERY_S, begun_s + limit_s - now_s)):
            now_s = time.monotonic()
            if now_s - begun_s >= limit_s:
                return False
            if self._writer.written_bytes != written_bytes:
                written_bytes, heard_s = self._writer.written_bytes, now_s
            if now_s - heard_s < _DISK_PATIENCE_S:
                self._reporter.progress()
        return True


def _unheard(record: CheckpointRecord) -> None:
    """Nobody listens."""


def read_checkpoint(path: Path, got_on: GotOn = nobody) -> tuple[Manifest, dict[str, Tensor]]:
    """A checkpoint's manifest and tensors, verified down to the state's digest.

    Raises:
        CheckpointError: it is torn or damaged.
    """
    manifest = verify(path, got_on)
    try:
        stored = {MODEL + name: tensor for name, tensor in _load(path / MODEL_FILE).items()}
        stored |= _load(path / OPTIMIZER_FILE)
        if AVERAGES_FILE in manifest.files:
            averages = _load(path / AVERAGES_FILE)
            stored |= {AVERAGE + name: tensor for name, tensor in averages.items()}
        tensors = {name: stored[name] for name in manifest.tensors}
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    if digest_of(tensors, manifest.state, got_on).hex() != manifest.digest:
        raise CheckpointError(f"{path} does not match its digest")
    return manifest, tensors


def _load(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory of our own.

    An optimizer that lived in a mapped file would keep its room on the disk from being freed, and
    the process would die with the file.
    """
    return {name: tensor.clone() for name, tensor in safetensors.torch.load_file(file).items()}


def _files(tensors: Mapping[str, Tensor]) -> dict[str, list[RawTensor]]:
    files: dict[str, list[RawTensor]] = {MODEL_FILE: [], OPTIMIZER_FILE: []}
    for name, tensor in tensors.items():
        file, prefix = OPTIMIZER_FILE, ""
        if name.startswith(MODEL):
            file, prefix = MODEL_FILE, MODEL
        elif name.startswith(AVERAGE):
            file, prefix = AVERAGES_FILE, AVERAGE
        raw = RawTensor(
            name=name.removeprefix(prefix),  # as the model's own state_dict() calls it
            dtype=dtype_name(name, tensor.dtype),
            shape=tuple(tensor.shape),
            content=tensor_bytes(tensor),
        )
        files.setdefault(file, []).append(raw)
    return files
