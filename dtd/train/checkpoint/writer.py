"""Writes checkpoints in the background so that no reader ever sees half of one.

A draft is written to a temporary directory at once, while training goes on.  Only when all ranks
have agreed on its digest is it published: manifest, fsync of everything, rename, fsync of the
parent, retention.  A draft that is not agreed on is thrown away.  Metrics are
added to a published one when its evaluation is over.  Disk errors end up in
`Failure`s, never in the training thread.

Several writers may share a directory: each drafts under a name of its own, and who finds the same
state published already has nothing left to do.  The snapshot's memory belongs to the writer until
it is written.  Tensors come as bytes; nothing here knows torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from dtd.core.membership.branches import Branch
from dtd.durable import make_directory, sync_directory
from dtd.errors import CheckpointError
from dtd.train.checkpoint.drafts import Drafts
from dtd.train.checkpoint.format import (
    MANIFEST_FILE,
    FileInfo,
    Manifest,
    checkpoint_name,
    encode_manifest,
    read_manifest,
    verify,
)
from dtd.train.checkpoint.retention import Rules, retain

_HEADER_ALIGNMENT = 8

_TRIES: Final = 8
"""Each failure means that somebody else has just put, or taken away, what lies there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTensor:
    """A tensor as safetensors sees it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: memoryview


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
    """A checkpoint that could not be written, and why."""

    name: str
    reason: str


class CheckpointWriter:
    """Writes one job's checkpoints, one after the other.

    Args:
        directory: the job's directory; made when it is needed.
        rules: which of them stay.

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
        self._publishing: list[tuple[str, Future[Published | None]]] = []

    def idle_within(self, timeout_s: float) -> bool:
        """Wait until nothing is being published any more; says whether that is so."""
        _, unfinished = wait([future for _, future in self._publishing], timeout_s)
        return not unfinished

    def write(self, draft: Draft) -> None:
        """Begin to write a draft; an earlier one that was never agreed on goes."""
        self.discard()
        name = checkpoint_name(draft.manifest.generation, draft.manifest.step)
        self._draft = (name, self._thread.submit(self._write, name, draft))

    def publish(self, metrics: Mapping[str, float]) -> None:
        """All ranks agree on the draft; its metrics are known now."""
        if self._draft is None:
            return
        (name, written), self._draft = self._draft, None
        future: Future[Published | None] = self._thread.submit(
            self._publish, name, written, dict(metrics)
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
        """Throw the draft away, if there is one."""
        if self._draft is not None:
            (name, _), self._draft = self._draft, None
            self._thread.submit(self._drafts.remove, name)

    def finished(self) -> list[Published | Failure]:
        """What came of `publish` and `add_metrics` since the last call; does not wait."""
        results: list[Published | Failure] = []
        while self._publishing and self._publishing[0][1].done():
            name, future = self._publishing.pop(0)
            try:
                published = future.result()
                if published is not None:
                    results.append(published)
            except Exception as error:  # noqa: BLE001 - training goes on whatever the disk does
                results.append(Failure(name=name, reason=f"{type(error).__name__}: {error}"))
        return results

    def flush(self) -> None:
        """Wait until everything that was asked for is done."""
        self._thread.submit(_nothing).result()

    def close(self) -> None:
        """Throw an unpublished draft away and end the thread."""
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
        self, name: str, written: Future[Manifest], metrics: Mapping[str, float]
    ) -> Published:
        begun_s = time.monotonic()
        draft, target = self._drafts.path(name), self._directory / name
        try:
            manifest = replace(written.result(), metrics=metrics)
            _write_synced(draft / MANIFEST_FILE, encode_manifest(manifest))
            sync_directory(draft)
            self._put(name, target, manifest)
        finally:
            self._drafts.remove(name)
        return self._published(target, manifest, self._writing_s + time.monotonic() - begun_s)

    def _published(self, target: Path, manifest: Manifest, write_s: float) -> Published:
        kept = retain(self._directory, self._rules, now_unix_s=time.time(), branches=self.branches)
        size_bytes = sum(file.stat().st_size for file in target.iterdir())
        return Published(
            path=target, manifest=manifest, size_bytes=size_bytes, write_s=write_s, kept=kept
        )

    def _add_metrics(
        self, name: str, earlier: Future[Published | None] | None, metrics: Mapping[str, float]
    ) -> Published | None:
        """Exchange the manifest for one with metrics; None if it had them and all is told."""
        published = earlier.result() if earlier is not None else None
        target = self._directory / name
        manifest = read_manifest(target)
        if dict(manifest.metrics) == metrics:
            return published
        manifest = replace(manifest, metrics=metrics)
        draft = self._drafts.make(name)
        try:
            _write_synced(draft / MANIFEST_FILE, encode_manifest(manifest))
            (draft / MANIFEST_FILE).replace(target / MANIFEST_FILE)
            sync_directory(target)
        finally:
            self._drafts.remove(name)
        return self._published(target, manifest, published.write_s if published else 0.0)

    def _put(self, name: str, target: Path, manifest: Manifest) -> None:
        """Put the draft in its place, where others may be doing the same; the first one counts."""
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

    Args:
        file: must not exist.
        tensors: its content.
        count: called with the number of bytes that were just written.

    The format: length of the header (8 bytes, little-endian), the header as JSON, the tensors'
    bytes.  Written here and not by the library because memory is passed on without copying, other
    threads run meanwhile, and the hash comes for free.
    """
    header, stop = {}, 0
    for tensor in tensors:
        start, stop = stop, stop + len(tensor.content)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, stop],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // _HEADER_ALIGNMENT) * _HEADER_ALIGNMENT)
    content, size_bytes = xxhash.xxh3_128(), 0
    with file.open("xb") as stream:
        parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
        for part in parts + [tensor.content for tensor in tensors]:
            stream.write(part)
            content.update(part)
            size_bytes += len(part)
            count(len(part))
        stream.flush()
        os.fsync(stream.fileno())
    return FileInfo(size_bytes=size_bytes, hash=content.hexdigest())


def _holds(target: Path, manifest: Manifest) -> bool:
    """Whether the same state is published there already, soundly."""
    if not target.exists():
        return False
    with contextlib.suppress(CheckpointError):
        return verify(target).digest == manifest.digest
    return False


def _write_synced(file: Path, content: bytes) -> None:
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _nothing() -> None:
    """A task that is done when all earlier ones are."""
