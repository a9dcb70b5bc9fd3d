"""Save a checkpoint again under another generation, in a process that may be killed meanwhile.

    python -m scripts.checkpoint_saver SOURCE DIRECTORY GENERATION
        [--die-at EVENT] [--file-limit BYTES] [--unprivileged]

The process kills itself at the EVENTth thing it does to the disk (a part written, a file synced, a
directory renamed), or can make no file larger than BYTES, or has no right to write where it should.
Exit code 0: saved; 3: not saved, and said so.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import safetensors.numpy

from dtd.checkpoint.format import read_manifest
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.checkpoint.writer import CheckpointWriter, Draft, Drafts, Failure, RawTensor, Rules

NOT_SAVED: Final = 3
NOBODY: Final = 65534
_TYPES: Final = {"float32": "F32", "float64": "F64", "int64": "I64"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Save, or die."""
    options = _parser().parse_args(arguments)
    draft = draft_of(options.source, options.generation)
    if options.unprivileged:
        os.chdir(options.directory)
        options.directory = Path()
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
    if options.file_limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_limit, hard))
    if options.die_at is not None:
        die_at(options.die_at)
    writer = CheckpointWriter(options.directory, Rules(keep=100))
    writer.write(draft)
    writer.publish({})
    writer.close()
    (result,) = writer.finished()
    if isinstance(result, Failure):
        sys.stderr.write(f"{result.name} was not saved: {result.reason}\n")
        return NOT_SAVED
    return 0


def draft_of(source: Path, generation: int) -> Draft:
    """A checkpoint's content as a draft of another generation."""
    manifest = read_manifest(source)
    files = {}
    for file in (MODEL_FILE, OPTIMIZER_FILE):
        arrays = safetensors.numpy.load_file(source / file)
        files[file] = [
            RawTensor(
                name=name,
                dtype=_TYPES[str(array.dtype)],
                shape=array.shape,
                content=(memoryview(array.tobytes()),),
            )
            for name, array in arrays.items()
        ]
    return Draft(
        manifest=replace(manifest, generation=generation, files={}, metrics={}), files=files
    )


def die_at(event: int) -> None:
    """Have this process killed at its event-th dealing with the disk, counted from 0."""
    events = itertools.count()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(events) == event:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    os.fsync = counted(os.fsync)
    setattr(Path, "rename", counted(Path.rename))  # noqa: B010 - a method is replaced
    setattr(Drafts, "make", counted(Drafts.make))  # noqa: B010
    setattr(Drafts, "remove", counted(Drafts.remove))  # noqa: B010
    setattr(CheckpointWriter, "_count", counted(CheckpointWriter._count))  # noqa: B010, SLF001


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("generation", type=int)
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--file-limit", type=int)
    parser.add_argument("--unprivileged", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
