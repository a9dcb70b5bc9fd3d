"""Assembles a whole checkpoint from parts that several workers wrote.

The result is what a job with a replicated state would have written: it is read with any strategy
and on any number of workers, by a dtd that knows no parts too.  Blocking, in memory that does not
depend on the size of the model, and without torch.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import xxhash

from dtd.checkpoint.choice import fewest, missing
from dtd.checkpoint.drafts import Drafts
from dtd.checkpoint.format import (
    FORMAT,
    MANIFEST_FILE,
    Manifest,
    Progress,
    canonical_json,
    checkpoint_name,
    encode_manifest,
    no_progress,
    part_files,
    verify,
)
from dtd.checkpoint.tensor_file import FILES, FileMerge, PartFiles, TensorInfo
from dtd.engine.shards import ShardSet
from dtd.errors import CheckpointError, PartsDiffer
from dtd.host.durable import make_directory, sync_directory, synced

SHARDED_ENTRIES: Final = "optimizer_shards"
"""Key in a sharded state's metadata: which optimizer entries are sharded; absent in a whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPart:
    """A part on this disk, and the worker that wrote it, for messages."""

    holder: str
    path: Path


def assemble(
    parts: Sequence[FoundPart], directory: Path, progress: Progress = no_progress
) -> tuple[Path, Manifest]:
    """Write a whole checkpoint; it is durable when this returns.

    Raises:
        CheckpointError: parts are damaged or missing, or there is no room.
        PartsDiffer: two of them contradict each other.
    """
    read = [(part, verify(part.path, progress)) for part in parts]
    first = _agreed(read)
    _check_whole(read, first)
    files = [part_files(part.path, manifest, part.holder) for part, manifest in read]
    name = checkpoint_name(first.generation, first.step)
    drafts = Drafts(directory)
    try:
        make_directory(directory)
        draft = drafts.make(name)
        manifest = _write(draft, files, first, progress)
        drafts.clear(name, directory / name)
        drafts.rename(name, directory / name)
        sync_directory(directory)
    except OSError as error:
        raise CheckpointError(
            f"{name} cannot be assembled in {directory}: {error.strerror or error}",
            remedy="free space there, or choose another directory",
        ) from error
    finally:
        drafts.remove(name)
    return directory / name, manifest


def _agreed(read: Sequence[tuple[FoundPart, Manifest]]) -> Manifest:
    """Return the manifest that all parts agree on."""
    (holder, first), *others = [(part.holder, manifest) for part, manifest in read]
    for name, manifest in others:
        for what, mine, other in (
            ("are of different jobs", _job(first), _job(manifest)),
            ("are of different steps", _key(first), _key(manifest)),
            ("were written by different worlds", first.world_size, manifest.world_size),
            (
                "have different digests",
                first.digest or manifest.digest,
                manifest.digest or first.digest,
            ),
            ("have different metadata", first.state, manifest.state),
            ("list different tensors", first.tensors, manifest.tensors),
        ):
            if mine != other:
                raise PartsDiffer(
                    f"the parts of {holder} and {name} {what}", holders=(holder, name)
                )
        metrics = first.metrics or manifest.metrics
        first = replace(first, metrics=metrics, digest=first.digest or manifest.digest)
    return first


def _job(manifest: Manifest) -> tuple[str, str]:
    return manifest.job, manifest.identity


def _key(manifest: Manifest) -> tuple[int, int]:
    return manifest.generation, manifest.step


def _check_whole(read: Sequence[tuple[FoundPart, Manifest]], first: Manifest) -> None:
    lacks = missing([manifest.shards for _, manifest in read])
    if lacks:
        holders = ", ".join(f"{part.holder} ({manifest.shards})" for part, manifest in read)
        raise missing_shards(lacks, first.step, holders)


def missing_shards(lacks: ShardSet, step: int, holders: str) -> CheckpointError:
    """The error for a checkpoint of which not all shards are there."""
    return CheckpointError(
        f"the checkpoint of step {step} lacks the shards {lacks}; there are those of {holders}",
        remedy="start the workers that hold the others, or take an earlier checkpoint",
    )


def _write(
    draft: Path, parts: Sequence[PartFiles], first: Manifest, progress: Progress
) -> Manifest:
    """Fill a draft with the files and the manifest."""
    state = {key: value for key, value in first.state.items() if key != SHARDED_ENTRIES}
    names = [file for file in FILES if file in first.files]
    with contextlib.ExitStack() as opened:
        merges = {name: opened.enter_context(FileMerge(name, parts)) for name in names}
        tensors = [tensor for merge in merges.values() for tensor in merge.tensors]
        digest = _begun_digest(first.tensors, tensors, state)

        def add(block: bytes) -> None:
            digest.update(block)
            progress()

        written = {name: merge.write(draft / name, add) for name, merge in merges.items()}
    manifest = replace(
        first,
        format=FORMAT,
        part=None,
        state=state,
        digest=digest.hexdigest(),
        files=written,
    )
    with synced((draft / MANIFEST_FILE).open("xb")) as stream:
        stream.write(encode_manifest(manifest))
    sync_directory(draft)
    return manifest


def _begun_digest(
    names: Sequence[str], tensors: Sequence[TensorInfo], state: dict[str, Any]
) -> xxhash.xxh3_128:
    """The digest of a state before the tensors' bytes (`dtd.train.state.tensors.digest_of`)."""
    listed = [
        [name, tensor.dtype, [*tensor.shape]] for name, tensor in zip(names, tensors, strict=True)
    ]
    digest = xxhash.xxh3_128()
    digest.update(canonical_json([listed, state]))
    return digest


Result = TypeVar("Result")

MOST_TRIES: Final = 8
"""Most merges that are tried: each reads all parts."""


def gathered(
    left: dict[str, ShardSet],
    without: frozenset[str],
    fetch: Callable[[str], Result],
    tell: Callable[[str, CheckpointError], None],
) -> list[Result]:
    """Fetch as few parts as make the whole; a holder that fails is told, and taken out of `left`.

    Raises:
        CheckpointError: what is left does not make the whole; tells of the last failure.
    """
    failure: CheckpointError | None = None
    while True:
        usable = [name for name in left if name not in without]
        lacks = missing([left[name] for name in usable])
        if lacks:
            raise failure or CheckpointError(f"the workers that are left lack the shards {lacks}")
        parts = []
        for name in [usable[index] for index in fewest([left[name] for name in usable])]:
            try:
                parts.append(fetch(name))
            except CheckpointError as error:
                tell(name, error)
                failure = error
                del left[name]
                break
        else:
            return parts


def settled(
    merge: Callable[[frozenset[str]], Result], distrust: Callable[[str], Any]
) -> tuple[Result, frozenset[str]]:
    """Merge parts, without some of them if need be.

    Args:
        merge: merges parts, none of them of the workers that it is given.
        distrust: how little a worker's part is trusted, as a key to sort by.

    Returns:
        the merged result, and the workers whose parts were left out.

    Raises:
        PartsDiffer: nothing can be merged however they are chosen; tells of the first two.
        CheckpointError: it cannot be merged for another reason.
    """
    left = deque([frozenset[str]()])
    known = {frozenset[str]()}
    first: PartsDiffer | None = None
    while left:
        without = left.popleft()
        try:
            return merge(without), without
        except PartsDiffer as error:
            first = first or error
            for name in sorted(error.holders, key=distrust, reverse=True):
                more = without | {name}
                if more not in known and len(known) < MOST_TRIES:
                    known.add(more)
                    left.append(more)
        except CheckpointError:
            if first is None:
                raise
    assert first is not None, "nothing was tried"
    raise first
