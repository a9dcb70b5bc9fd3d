"""The format of a checkpoint on disk, and its verification.

    <directory>/<job id>.<tag>/g<generation>-s<step>/
        model.safetensors        parameters and buffers
        ema.safetensors          averages of the trained parameters, where a job takes them
        optimizer.safetensors    optimizer state
        manifest.json            everything else, with size and hash of both files and of itself

The newest is the highest (generation, step) that is complete; others are passed over with a reason.
Its tensors are read once, when it is loaded, and hashed on the way.
Whatever has another name (a write that was cut short leaves `.tmp-...`) is no checkpoint.  Where
the state is sharded, such a directory is a part of a checkpoint (`dtd.checkpoint.tensor_file`), and
the parts of several workers make a whole one (`dtd.checkpoint.assemble`).  Without torch, so that a
worker can say what it holds before it imports it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from dtd.checkpoint.tensor_file import (
    AVERAGES_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    FileInfo,
    Part,
    PartFiles,
    TensorFile,
)
from dtd.engine.shards import WHOLE, ShardSet
from dtd.errors import CheckpointError
from dtd.job.terms import folder_of

Progress = Callable[[], None]
"""Called after each piece of long work; may raise to cancel it."""

FORMAT: Final = 2
PART_FORMAT: Final = 3
READABLE: Final = (FORMAT, PART_FORMAT)

MANIFEST_FILE: Final = "manifest.json"
TEMPORARY: Final = ".tmp-"
ORIGIN: Final = "origin"
"""In a job's directory: the checkpoint that it starts from, if that was assembled here."""

_NAME = re.compile(r"g(\d{6,})-s(\d{9,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """manifest.json.

    Attributes:
        epoch: epoch of the next row.
        offset: rows used in that epoch.
        digest: hex digest of the state; all ranks agreed on it.  That of a sharded state is made
            of all shards' digests (`dtd.engine.digests`), and empty if no ring was left
            to compare them.
        parent: name of the checkpoint before it, empty for the first.
        metrics: of the evaluation at this step; empty if there was none.
        world_size: workers at the time; any number can continue.
        tensors: names of all tensors, in the digest's order.
        local_state: state of each rank alone that is in no checkpoint, by name, and what it is
            after loading: "zero".  None if the writer did not record it.
        part: the part of a sharded state that is here; None for a whole checkpoint.
    """

    format: int
    job: str
    job_name: str
    task: str
    generation: int
    step: int
    epoch: int
    offset: int
    digest: str
    parent: str
    metrics: Mapping[str, float]
    world_size: int
    files: Mapping[str, FileInfo]
    state: Mapping[str, Any]
    tensors: tuple[str, ...]
    identity: str = ""
    local_state: Mapping[str, str] | None = None
    part: Part | None = None

    @property
    def shards(self) -> ShardSet:
        """The shards of the state that are here."""
        return WHOLE if self.part is None else self.part.shards


class Found(NamedTuple):
    """A checkpoint on this disk."""

    path: Path
    manifest: Manifest


def no_progress() -> None:
    """A `Progress` that does nothing."""


def checkpoint_name(generation: int, step: int) -> str:
    """Name of a checkpoint's directory."""
    return f"g{generation:06d}-s{step:09d}"


def parse_name(name: str) -> tuple[int, int] | None:
    """(generation, step) of a checkpoint's directory; None if it is something else."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def list_checkpoints(directory: Path, folder: str) -> list[Path]:
    """Directories of a job's checkpoints, newest first, verified or not."""
    try:
        entries = [path for path in (directory / folder).iterdir() if path.is_dir()]
    except OSError:
        return []
    named = [(key, path) for path in entries if (key := parse_name(path.name)) is not None]
    return [path for _, path in sorted(named, reverse=True)]


@dataclass(frozen=True, slots=True)
class JobFolder:
    """The directory of one job's checkpoints."""

    directory: Path
    job_id: str
    identity: str = ""

    @property
    def path(self) -> Path:
        """The directory itself, which may not exist yet."""
        return self.directory / folder_of(self.job_id, self.identity)


def newest_complete(
    folder: JobFolder,
    *,
    step: int | None = None,
    besides: Container[Path] = (),
    pass_over: Callable[[Path, str], None] = lambda _path, _why: None,
) -> Found | None:
    """The newest checkpoint of a job that is complete; its tensors are not read.

    Args:
        folder: the job's.
        step: only those after this many steps.
        besides: not these.
        pass_over: told the path of each newer one that is damaged, and why.
    """
    for path in list_checkpoints(folder.directory, folder.path.name):
        key = parse_name(path.name)
        if path in besides or (step is not None and key is not None and key[1] != step):
            continue
        try:
            manifest = inspect(path)
        except CheckpointError as error:
            pass_over(path, error.message)
            continue
        if manifest.identity == folder.identity:
            return Found(path, manifest)
        pass_over(path, f"it belongs to another job: {manifest.identity}")
    return None


def inspect(path: Path) -> Manifest:
    """Compare a checkpoint's directory with its manifest in all but the tensors' bytes.

    Raises:
        CheckpointError: it is torn, incomplete or lies under a wrong name.
    """
    manifest = read_manifest(path)
    if path.name != checkpoint_name(manifest.generation, manifest.step):
        raise CheckpointError(f"{path} holds step {manifest.step}: it was renamed")
    if manifest.files.keys() - {AVERAGES_FILE} != {MODEL_FILE, OPTIMIZER_FILE}:
        raise CheckpointError(f"{path / MANIFEST_FILE} lists {', '.join(sorted(manifest.files))}")
    for name, info in manifest.files.items():
        _check_size(path / name, info)
    return manifest


def verify(path: Path, progress: Progress = no_progress) -> Manifest:
    """Read every byte of a checkpoint and compare it with its manifest.

    Raises:
        CheckpointError: it is torn, damaged, incomplete or lies under a wrong name.
    """
    manifest = inspect(path)
    for name, info in manifest.files.items():
        with TensorFile(path / name) as file:
            check_hash(path / name, info, file.read_all(progress=progress))
    return manifest


def part_files(path: Path, manifest: Manifest, holder: str) -> PartFiles:
    """The files of a part, for `FileMerge`."""
    assert manifest.part is not None, "a whole checkpoint is not assembled"
    return PartFiles(holder=holder, directory=path, tensors=manifest.tensors, part=manifest.part)


def encode_manifest(manifest: Manifest) -> bytes:
    """manifest.json, with a hash of itself.

    Raises:
        ValueError: it holds a number that JSON does not have.
    """
    content = asdict(replace(manifest, part=None))
    del content["part"]
    if manifest.part is not None:
        content["part"] = manifest.part.to_mapping()
    content["manifest_hash"] = _hash_of(content)
    return json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint's directory, checked against its own hash only.

    Raises:
        CheckpointError: it is missing, torn or damaged.
    """
    file = path / MANIFEST_FILE
    try:
        content = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
        stated = content.pop("manifest_hash")
        if content["format"] not in READABLE:
            raise CheckpointError(
                f"{file} has format {content['format']}, and this dtd reads up to {READABLE[-1]}"
            )
        if stated != _hash_of(content):
            raise CheckpointError(f"{file} does not match its hash")
        files = {name: FileInfo(**info) for name, info in content.pop("files").items()}
        tensors = tuple(content.pop("tensors"))
        part = Part.from_mapping(content.pop("part")) if "part" in content else None
        return Manifest(**content, files=files, tensors=tensors, part=part)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} is torn or is no manifest: {error}") from error


def _hash_of(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128(canonical_json(content)).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_size(file: Path, info: FileInfo) -> None:
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    if size_bytes != info.size_bytes:
        raise CheckpointError(f"{file} has {size_bytes} bytes, not {info.size_bytes}: torn")


def check_hash(file: Path, info: FileInfo, found: str) -> None:
    """Compare the hash of a file that was read with the manifest's.

    Raises:
        CheckpointError: they differ.
    """
    if found != info.hash:
        raise CheckpointError(f"{file} does not match its hash: a bit flipped or it was edited")


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values; strict."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()
