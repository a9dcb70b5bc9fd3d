"""Writes checkpoints in the background so that no reader ever sees a partial one.

A draft is written to a temporary directory immediately, while training continues.  It is published
only after all ranks have agreed on its digest: manifest, fsync of everything, rename, fsync of the
parent, retention.  A draft without agreement is discarded.  Metrics are added to a published
checkpoint after its evaluation.  Disk errors are reported as `Failure`s and never raised in the
training thread.

The snapshot's memory belongs to the writer until it is written.  Tensors are passed as bytes; this
file does not import torch.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from dtd.checkpoint.drafts import Drafts, remove
from dtd.checkpoint.format import (
    MANIFEST_FILE,
    ORIGIN,
    Manifest,
    checkpoint_name,
    encode_manifest,
    read_manifest,
    verify,
)
from dtd.checkpoint.retention import Rules, retain
from dtd.checkpoint.tensor_file import FileInfo, TensorInfo, encode_header
from dtd.cluster.generation.branches import Branch
from dtd.errors import CheckpointError
from dtd.host.durable import make_directory, sync_directory, synced

_TRIES: Final = 8
"""Each failure means that another writer has just created or removed the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """A tensor as safetensors sees it; its bytes may lie in several places, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checkpoint before it is agreed on; `manifest` lacks metrics and files."""

    manifest: Manifest
    files: Mapping[str, Sequence[RawTensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A checkpoint that readers can see; `write_s`: how long writing and publishing it took."""

    path: Path
    manifest: Manifest
    size_bytes: int
    write_s: float
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A checkpoint that could not be written, and why; `saved`: only its metrics could not."""

    name: str
    reason: str
    saved: bool = False


class CheckpointWriter:
    """Writes one job's checkpoints, one after the other.

    Attributes:
        branches: what the job has left behind, which stays in any case.
    """

    def __init__(self, directory: Path, rules: Rules) -> None:
        self._directory = directory
        self._rules = rules
        self._drafts = Drafts(directory)
        self.branches: tuple[Branch, ...] = ()
        self._lasts = False  # the directory, and the way to it, survive a loss of power
        self.written_bytes = 0
        self._writing_s = 0.0  # of the newest draft; each is published before the next is begun
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._draft: tuple[str, Future[Manifest]] | None = None
        self._publishing: list[tuple[str, Future[list[Published | Failure]]]] = []

    def idle_within(self, timeout_s: float) -> bool:
        """Wait until all publishing has finished; returns whether it has."""
        _, unfinished = wait([future for _, future in self._publishing], timeout_s)
        return not unfinished

    def write(self, draft: Draft) -> None:
        """Start writing a draft; an earlier one without agreement is discarded."""
        self.discard()
        name = checkpoint_name(draft.manifest.generation, draft.manifest.step)
        self._draft = (name, self._thread.submit(self._write, name, draft))

    def written_within(self, timeout_s: float) -> bool:
        """Wait until the draft has been read from memory; returns whether it has."""
        _, unfinished = wait([] if self._draft is None else [self._draft[1]], timeout_s)
        return not unfinished

    def publish(self, metrics: Mapping[str, float], digest: str | None = None) -> None:
        """All ranks agree on the draft; its metrics are known now.

        Args:
            metrics: go into the manifest.
            digest: the state's, which may not have been known to the draft; None: as there.
        """
        if self._draft is None:
            return
        (name, written), self._draft = self._draft, None
        future: Future[list[Published | Failure]] = self._thread.submit(
            self._publish, name, written, dict(metrics), digest
        )
        self._publishing.append((name, future))

    def add_metrics(self, name: str, metrics: Mapping[str, float]) -> None:
        """The state of this name, published before, was evaluated since."""
        published = None
        if self._publishing and self._publishing[-1][0] == name:
            _, published = self._publishing.pop()
        future = self._thread.submit(self._add_metrics, name, published, dict(metrics))
        self._publishing.append((name, future))

    def discard(self) -> None:
        if self._draft is not None:
            (name, _), self._draft = self._draft, None
            self._thread.submit(self._drafts.remove, name)

    def finished(self) -> list[Published | Failure]:
        """Return the results of `publish` and `add_metrics` since the last call; does not wait."""
        results: list[Published | Failure] = []
        while self._publishing and self._publishing[0][1].done():
            name, future = self._publishing.pop(0)
            try:
                results += future.result()
            except Exception as error:  # noqa: BLE001 - training goes on whatever the disk does
                results.append(_failure(name, error))
        return results

    def flush(self) -> None:
        """Wait until everything that was asked for is done."""
        self._thread.submit(_nothing).result()

    def close(self) -> None:
        """Discard an unpublished draft and stop the thread."""
        self.discard()
        self._thread.shutdown(wait=True)

    # --- in the background -----------------------------------------------------------------

    def _write(self, name: str, draft: Draft) -> Manifest:
        if not (self._lasts and self._directory.is_dir()):
            make_directory(self._directory)
            self._lasts = True
        self._drafts.remove_leftovers(draft.manifest.generation)
        begun_s = time.monotonic()
        directory = self._drafts.make(name)
        files = {
            file: write_safetensors(directory / file, tensors, self._count)
            for file, tensors in draft.files.items()
        }
        self._writing_s = time.monotonic() - begun_s
        return replace(draft.manifest, files=files)

    def _count(self, size_bytes: int) -> None:
        self.written_bytes += size_bytes

    def _publish(
        self,
        name: str,
        written: Future[Manifest],
        metrics: Mapping[str, float],
        digest: str | None,
    ) -> list[Published | Failure]:
        begun_s = time.monotonic()
        draft, target = self._drafts.path(name), self._directory / name
        try:
            manifest = replace(written.result(), metrics=metrics)
            if digest is not None:
                manifest = replace(manifest, digest=digest)
            _write_synced(draft / MANIFEST_FILE, encode_manifest(manifest))
            sync_directory(draft)
            self._put(name, target, manifest)
        finally:
            self._drafts.remove(name)
        write_s = self._writing_s + time.monotonic() - begun_s
        return [self._published(target, manifest, write_s)]

    def _published(self, target: Path, manifest: Manifest, write_s: float) -> Published:
        # Counted, not looked up: retention may remove it at once, here or in another process.
        size_bytes = len(encode_manifest(manifest))
        size_bytes += sum(file.size_bytes for file in manifest.files.values())
        remove(self._directory / ORIGIN)  # from now on the job has checkpoints of its own
        kept = retain(self._directory, self._rules, now_unix_s=time.time(), branches=self.branches)
        return Published(
            path=target, manifest=manifest, size_bytes=size_bytes, write_s=write_s, kept=kept
        )

    def _add_metrics(
        self,
        name: str,
        earlier: Future[list[Published | Failure]] | None,
        metrics: Mapping[str, float],
    ) -> list[Published | Failure]:
        """Exchange the manifest for one with metrics; without them the checkpoint is there, too."""
        untold = earlier.result() if earlier is not None else []
        write_s = sum(one.write_s for one in untold if isinstance(one, Published))
        try:
            published = self._with_metrics(name, metrics, write_s)
        except Exception as error:  # noqa: BLE001 - training goes on whatever the disk does
            return [*untold, _failure(name, error, saved=True)]
        return untold if published is None else [published]

    def _with_metrics(
        self, name: str, metrics: Mapping[str, float], write_s: float
    ) -> Published | None:
        """None if it has them already."""
        target = self._directory / name
        manifest = read_manifest(target)
        if dict(manifest.metrics) == metrics:
            return None
        manifest = replace(manifest, metrics=metrics)
        draft = self._drafts.make(name)
        try:
            _write_synced(draft / MANIFEST_FILE, encode_manifest(manifest))
            (draft / MANIFEST_FILE).replace(target / MANIFEST_FILE)
            sync_directory(target)
        finally:
            self._drafts.remove(name)
        return self._published(target, manifest, write_s)

    def _put(self, name: str, target: Path, manifest: Manifest) -> None:
        """Move the draft to its target; if several writers try, the first one succeeds."""
        for _ in range(_TRIES):
            if _holds(target, manifest):
                return
            try:
                self._drafts.rename(name, target)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not _holds(target, manifest):
                    self._drafts.clear(name, target)
            else:
                sync_directory(self._directory)
                return
        raise CheckpointError(
            f"{target} cannot be put in its place: something else is there after {_TRIES} tries",
            remedy="look who else writes to the checkpoint directory",
        )


def write_safetensors(
    file: Path, tensors: Sequence[RawTensor], count: Callable[[int], None]
) -> FileInfo:
    """Write a safetensors file and return its size and hash; it is on the disk when this returns.

    Written here and not by the library because memory is passed on without copying, other threads
    run meanwhile, and the hash comes for free.
    """
    header = encode_header(
        TensorInfo(name=one.name, dtype=one.dtype, shape=one.shape) for one in tensors
    )
    content, size_bytes = xxhash.xxh3_128(), 0
    with synced(file.open("xb")) as stream:
        pieces: list[bytes | memoryview] = [header]
        pieces += [piece for tensor in tensors for piece in tensor.content]
        for part in pieces:
            stream.write(part)
            content.update(part)
            size_bytes += len(part)
            count(len(part))
    return FileInfo(size_bytes=size_bytes, hash=content.hexdigest())


def _holds(target: Path, manifest: Manifest) -> bool:
    """Whether the same state, or the same part of it, is published there already, soundly."""
    if not target.exists():
        return False
    with contextlib.suppress(CheckpointError):
        there = verify(target)
        return (there.digest, there.shards) == (manifest.digest, manifest.shards)
    return False


def _write_synced(file: Path, content: bytes) -> None:
    with synced(file.open("wb")) as stream:
        stream.write(content)


def _failure(name: str, error: Exception, *, saved: bool = False) -> Failure:
    return Failure(name=name, reason=f"{type(error).__name__}: {error}", saved=saved)


def _nothing() -> None:
    """A task that is done when all earlier ones are."""
