"""When a state is saved and when it may be trusted: checkpoints in the training thread.

After a step with a due checkpoint, every rank computes the digest of its state; ranks that write
also copy the state and start writing it.  The digest is sent in the next exchange.  If all ranks
have the same digest, the draft is published; otherwise replicas have diverged, and nothing is.
Where the state is sharded, every rank writes the part that it holds, and the digest of the whole is
known when the ranks agree on it.
Ranks that do not write take part in the agreement, too.  If a disk fails, training continues and
the operator is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dtd.checkpoint.format import (
    FORMAT,
    PART_FORMAT,
    JobFolder,
    Manifest,
    Progress,
    checkpoint_name,
)
from dtd.checkpoint.retention import rules_of
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE, HeldTensor, Part, placed
from dtd.checkpoint.writer import CheckpointWriter, Draft, Failure, RawTensor
from dtd.cluster.generation.branches import Branch
from dtd.engine.digests import DeferredDigest, ShardDigests
from dtd.engine.shards import WHOLE, ShardSet
from dtd.engine.step_protocol import StateKey
from dtd.errors import CheckpointError
from dtd.host.process_memory import mapped_blocks
from dtd.job import JobSpec
from dtd.strategy.sharded.state import ShardedState
from dtd.strategy.wire_memory import tensor_bytes
from dtd.text.shown import shown_bytes
from dtd.train.memory.available import available_memory
from dtd.train.memory.calculated import snapshot_bytes
from dtd.train.record import CheckpointRecord, Reporter, Warn
from dtd.train.state.replica import Replica
from dtd.train.state.tensors import (
    MODEL,
    OPTIMIZER,
    digest_of,
    dtype_name,
    metadata,
    named_tensors,
    on_host,
    optimizer_place,
    shard_digests,
    state_digest,
)
from dtd.train.state.weights import copied_to_host, model_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state as it is written.

    Attributes:
        names: of all tensors of the state, in the order of its digest.
        tensors: what is written, by name: a sharded tensor as the pieces that are held, as if they
            were one tensor of one dimension.
        about: the part of the state that is not tensors.
        digest: of the whole state; empty if this rank cannot know it.
        part: the held part of a sharded state; None for a whole one.
    """

    names: tuple[str, ...]
    tensors: Mapping[str, RawTensor]
    about: Mapping[str, Any]
    digest: bytes
    part: Part | None = None

    @property
    def size_bytes(self) -> int:
        return sum(len(piece) for one in self.tensors.values() for piece in one.content)


def whole_snapshot(replica: Replica, progress: Progress) -> Snapshot:
    """Copy a state of which this rank has all."""
    live = named_tensors(replica)
    tensors = {name: copied_to_host(tensor, progress) for name, tensor in live.items()}
    about = metadata(replica)
    digest = digest_of(tensors, about, progress)
    saved = {name: _stored(name, tensor.dtype, tensor) for name, tensor in tensors.items()}
    return Snapshot(names=tuple(tensors), tensors=saved, about=about, digest=digest)


def part_snapshot(
    replica: Replica, shards: ShardedState, *, mirrors: int, copies: bool, progress: Progress
) -> Snapshot:
    """Copy the common part of a sharded state, and this rank's pieces of the sharded tensors.

    Args:
        replica: the state.
        shards: its pieces of the sharded tensors.
        mirrors: of the job.
        copies: into memory of their own; else they are valid while the state does not change.
        progress: called as copying progresses.
    """

    def taken(tensor: Tensor) -> Tensor:
        return copied_to_host(tensor, progress) if copies else on_host(tensor)

    sharded = {one.name: one for one in shards.tensors()}
    common = named_tensors(replica).items()
    saved = {name: _stored(name, tensor.dtype, taken(tensor)) for name, tensor in common}
    for name, one in sharded.items():
        saved[name] = _stored(name, one.dtype, *(taken(piece.values) for piece in one.pieces))
    names = whole_order([MODEL + name for name in model_tensors(replica.model)], [*saved])
    held = {
        name: HeldTensor(
            dtype=dtype_name(name, one.dtype),
            shape=one.shape,
            ranges=tuple((piece.start, piece.stop) for piece in one.pieces),
        )
        for name, one in sharded.items()
    }
    return Snapshot(
        names=names,
        tensors={name: saved[name] for name in names},
        about=metadata(replica),
        digest=b"",
        part=Part(shards=shards.sliced, mirrors=mirrors, tensors=held),
    )


def whole_order(model: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The order that these tensors have in the state of a process that holds it whole.

    Args:
        model: the names of the model's tensors in order.
        names: all names, those of the model among them; tensors that are neither the model's nor
            the optimizer's are in order.
    """
    optimizer = sorted((n for n in names if n.startswith(OPTIMIZER)), key=optimizer_place)
    there, ordered = set(names), {*model, *optimizer}
    rest = [name for name in names if name not in ordered]
    return (*(name for name in model if name in there), *optimizer, *rest)


def _stored(name: str, dtype: torch.dtype, *pieces: Tensor) -> RawTensor:
    """A tensor in host memory; other than one piece are stored as one tensor of one dimension."""
    joined = (sum(piece.numel() for piece in pieces),)
    return RawTensor(
        name=placed(name)[1],
        dtype=dtype_name(name, dtype),
        shape=tuple(pieces[0].shape) if len(pieces) == 1 else joined,
        content=tuple(tensor_bytes(piece) for piece in pieces),
    )


_PATIENCE_S = 1.0
"""Time that a checkpoint which may be left out waits for an earlier one to be written."""

_SPARE_BYTES = 64 << 20
"""Memory that a copy must leave to the process."""

_LOOK_EVERY_S = 0.25
_DISK_PATIENCE_S = 60.0
"""If the disk has accepted no byte for so long, waiting for it no longer counts as progress."""

_NOTHING_SAVED = StateKey(-1, -1)


class Checkpoints:
    """One job's checkpoints on this worker.

    Attributes:
        deferred: the digest that ranks compare next.
        snapshot_bytes: size of the newest copy of the state, in host memory.
    """

    def __init__(
        self,
        *,
        spec: JobSpec,
        folder: JobFolder,
        reporter: Reporter,
        warn: Warn,
        saved: Callable[[CheckpointRecord], None],
        local_state: Callable[[], Mapping[str, str]],
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._reporter = reporter
        self._tell = saved
        self._local_state = local_state
        self._warn = warn
        self._writer = CheckpointWriter(folder.path, rules_of(spec))
        self.deferred = DeferredDigest()
        self.snapshot_bytes = 0
        self.parent = ""
        self._metrics: tuple[int, Mapping[str, float]] = (-1, {})
        self._saved = self._draft = _NOTHING_SAVED
        self._known = (-1, b"")
        self._parts_of = 0
        self._part = WHOLE

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of the state after `step` steps, for its manifest, written already or not."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._metrics = (step, finite)
        if self._saved.step == step and finite:
            self._writer.add_metrics(checkpoint_name(*self._saved), finite)

    def leave_behind(self, branches: tuple[Branch, ...]) -> None:
        """Keep the checkpoints of these branches, whatever is written later."""
        self._writer.branches = branches

    def take_digest(
        self, replica: Replica, key: StateKey | None = None, agreed: bytes = b""
    ) -> None:
        """Take the digest of the state, to be compared next; `agreed` if it is known already."""
        progress = self._reporter.progress
        taken: bytes | ShardDigests
        if replica.shards is None:
            taken = state_digest(replica, progress)
        else:
            taken = agreed or shard_digests(replica, progress)
        self.deferred.take(replica.step, taken, key)

    def take(
        self,
        replica: Replica,
        *,
        key: StateKey,
        world_size: int,
        writes: bool,
        waits: bool,
        agreed: bytes = b"",
    ) -> None:
        """Take the digest of the state, and write a draft of it, or of this rank's part.

        Args:
            replica: the state; may change as soon as this returns.
            key: its key, which becomes the name.
            world_size: goes into the manifest.
            writes: this rank is one of those that write.
            waits: finish an earlier write first however long it takes, instead of leaving this
                one out: a disk that hangs must not hold up training.
            agreed: its digest, if the ranks have just agreed on it.  That of a sharded state is
                known to no rank alone.
        """
        if not writes:
            self.take_digest(replica, key, agreed)
            return
        snapshot: Snapshot | None = None
        if replica.shards is None:
            snapshot = whole_snapshot(replica, self._reporter.progress)
            self.deferred.take(replica.step, snapshot.digest, key)
        else:
            self.take_digest(replica, key, agreed)
        if not self._idle_within(math.inf if waits else _PATIENCE_S):
            name = checkpoint_name(*key)
            self._warn("checkpoint_left_out", f"{name} was not written: an earlier one still is")
            return
        if snapshot is not None:
            self.snapshot_bytes = snapshot.size_bytes
            self._write(replica, key, world_size, snapshot)
        else:  # only now: an earlier copy has been written, and its memory is free
            self._write_part(replica, key, world_size)

    def _write_part(self, replica: Replica, key: StateKey, world_size: int) -> None:
        """Write this rank's part of a sharded state; waits if there is no room for a copy."""
        shards = replica.shards
        assert shards is not None, "the state is sharded"
        size_bytes, room = snapshot_bytes(replica), available_memory(torch.device("cpu"))
        copies = size_bytes + _SPARE_BYTES <= room.bytes
        with mapped_blocks():
            snapshot = part_snapshot(
                replica,
                shards,
                mirrors=self._spec.strategy.mirrors,
                copies=copies,
                progress=self._reporter.progress,
            )
        self.snapshot_bytes = snapshot.size_bytes if copies else 0
        self._write(replica, key, world_size, snapshot)
        if not copies:
            self._warn(
                "checkpoint_waited_for",
                f"training waits while {checkpoint_name(*key)} is written: a copy of"
                f" {shown_bytes(size_bytes)} does not fit into {shown_bytes(room.bytes)}"
                f" ({room.limit})",
            )
            self._waited(math.inf, self._writer.written_within)

    def _write(self, replica: Replica, key: StateKey, world_size: int, snapshot: Snapshot) -> None:
        """Let a draft be written."""
        self._draft, self._parts_of = key, world_size if snapshot.part else 0
        self._part = snapshot.part.shards if snapshot.part else WHOLE
        manifest = Manifest(
            **self._about_job(),
            format=FORMAT if snapshot.part is None else PART_FORMAT,
            generation=key.generation,
            step=key.step,
            epoch=replica.epoch,
            offset=replica.offset,
            digest=snapshot.digest.hex(),
            world_size=world_size,
            state=snapshot.about,
            tensors=snapshot.names,
            local_state=self._local_state(),
            part=snapshot.part,
        )
        self._writer.write(Draft(manifest=manifest, files=_files(snapshot.tensors)))

    def _about_job(self) -> dict[str, Any]:
        return {
            "job": self._folder.job_id,
            "identity": self._folder.identity,
            "job_name": self._spec.job.name,
            "task": self._spec.job.task,
            "parent": self.parent,
            "metrics": {},
            "files": {},
        }

    def agreed(self) -> None:
        """Publish this rank's draft: all ranks hold the pending digest."""
        pending = self.deferred.pending
        if pending is not None:
            self._known = (pending.step, pending.digest)
        if pending is not None and pending.key is not None:
            self._reporter.agreed(pending.key, pending.digest)
        self._publish_draft()

    def _publish_draft(self) -> None:
        """Publish this rank's draft, if it is the pending one."""
        pending = self.deferred.settled()
        if pending is not None and pending.step == self._draft.step:
            step, metrics = self._metrics
            self._writer.publish(metrics if step == pending.step else {}, pending.digest.hex())
            self._saved, self._draft = self._draft, _NOTHING_SAVED
            self.parent = checkpoint_name(*self._saved)

    def settle(self, step: int, digest: bytes) -> None:
        """All ranks hold `digest` after `step` steps; whatever else was pending is dropped."""
        self._known = (step, digest)
        if self.deferred.matches(step, digest):
            self.agreed()
        else:
            self.drop()

    def drop(self) -> None:
        """Drop the pending digest and draft."""
        self.deferred.drop()
        self._draft = _NOTHING_SAVED
        self._writer.discard()

    def holds(self, key: StateKey, world_size: int, part: ShardSet) -> bool:
        """Whether this process published this part of the state of this key.

        The parts of a checkpoint have to be of one world: those of another number of ranks are cut
        elsewhere, and have another digest.
        """
        same_cut = self._parts_of in (0, world_size)
        return self._saved == key and same_cut and self._part.covers(part)

    def loaded(self, key: StateKey, parts_of: int = 0, part: ShardSet = WHOLE) -> None:
        """The live state was read from this job's checkpoint of this key.

        `parts_of` is the number of ranks among which it was divided; 0: it was whole.
        """
        self._part = part
        self._saved, self.parent, self._parts_of = key, checkpoint_name(*key), parts_of

    def save(self, replica: Replica, *, key: StateKey, world_size: int) -> None:
        """Write and publish the state, and wait until done; no other rank is left to agree.

        The part of a sharded state gets the digest on which the ranks agreed last, if that was of
        this step, and else none.

        Raises:
            CheckpointError: it cannot be written.
        """
        step, digest = self._known
        agreed = digest if step == replica.step else b""
        self.take(replica, key=key, world_size=world_size, writes=True, waits=True, agreed=agreed)
        self._publish_draft()
        self._idle_within(math.inf)
        for failure in self._report():
            raise CheckpointError(f"{failure.name} was not saved: {failure.reason}")

    def poll(self) -> None:
        """Report finished writes; does not wait."""
        for failure in self._report():
            what = "is saved without its metrics" if failure.saved else "was not saved"
            self._warn("checkpoint_failed", f"{failure.name} {what}: {failure.reason}")

    def _report(self) -> list[Failure]:
        """Report publications since the last call; returns the failures."""
        failures: list[Failure] = []
        for result in self._writer.finished():
            if isinstance(result, Failure):
                self._saved = self._saved if result.saved else _NOTHING_SAVED
                failures.append(result)
                continue
            record = CheckpointRecord(
                job_id=self._folder.job_id,
                generation=result.manifest.generation,
                step=result.manifest.step,
                digest=result.manifest.digest,
                directory=str(result.path),
                size_bytes=result.size_bytes,
                write_s=result.write_s,
                metrics=dict(result.manifest.metrics),
                kept=result.kept,
                part=result.manifest.shards,
            )
            self._reporter.checkpoint_saved(record)
            self._tell(record)
        return failures

    def flush(self) -> None:
        self._idle_within(math.inf)
        self.poll()

    def close(self) -> None:
        """Stop the writer and remove drafts; no callback of the task is called any more."""
        self._tell = lambda _: None
        self._writer.close()
        self.poll()

    def _idle_within(self, limit_s: float) -> bool:
        """Wait until the writer is idle; returns whether it is."""
        return self._waited(limit_s, self._writer.idle_within)

    def _waited(self, limit_s: float, done_within: Callable[[float], bool]) -> bool:
        """Wait for the writer, reporting progress while it writes; returns whether it is done."""
        begun_s = heard_s = now_s = time.monotonic()
        written_bytes = self._writer.written_bytes
        while not done_within(min(_LOOK_EVERY_S, begun_s + limit_s - now_s)):
            now_s = time.monotonic()
            if now_s - begun_s >= limit_s:
                return False
            if self._writer.written_bytes != written_bytes:
                written_bytes, heard_s = self._writer.written_bytes, now_s
            if now_s - heard_s < _DISK_PATIENCE_S:
                self._reporter.progress()
        return True


def _files(tensors: Mapping[str, RawTensor]) -> dict[str, list[RawTensor]]:
    files: dict[str, list[RawTensor]] = {MODEL_FILE: [], OPTIMIZER_FILE: []}
    for listed, tensor in tensors.items():
        files.setdefault(placed(listed)[0], []).append(tensor)
    return files
