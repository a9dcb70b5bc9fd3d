"""Checkpoints on this worker's disk: opened for others, and deleted for the coordinator.

A resource name "checkpoint/DIRECTORY/NAME" names one published checkpoint; anything that would lead
out of the checkpoint directories is refused.  A checkpoint of an ended job is deleted when the
coordinator says so: only a directory goes that is called as a checkpoint of that job would be, in
one that is called after the job and its identity.  Blocking; runs in threads.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dtd.checkpoint.format import (
    TEMPORARY,
    checkpoint_name,
)
from dtd.errors import CheckpointError
from dtd.job.terms import folder_of
from dtd.net.data_port.resources import Resource, file_blob
from dtd.wire import messages as m

MANIFEST: Final = "manifest.json"
_RESOURCE: Final = re.compile(r"checkpoint/([A-Za-z0-9][\w.-]{0,127})/(g\d{1,10}-s\d{1,19})")


def open_checkpoint(directories: Sequence[Path], resource: str) -> Resource:
    """The files of a published checkpoint.

    Raises:
        CheckpointError: no such checkpoint is here.
    """
    folder = named_checkpoint(directories, resource)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return Resource(
        manifest=(folder / MANIFEST).read_bytes(),
        blobs=[file_blob(path) for path in files if path.name != MANIFEST],
    )


def named_checkpoint(directories: Sequence[Path], resource: str) -> Path:
    """The directory of a published checkpoint.

    Raises:
        CheckpointError: no such checkpoint is here.
    """
    named = _RESOURCE.fullmatch(resource)
    if named is None:
        raise CheckpointError(f"{resource!r} does not name a checkpoint")
    for directory in directories:
        folder = directory / named[1] / named[2]
        if (folder / MANIFEST).is_file():
            return folder
    raise CheckpointError(
        f"{resource} is not on this worker's disk", remedy="see `dtdctl checkpoints`"
    )


def drop_checkpoint(message: m.DropCheckpoint) -> str:
    """Delete it; returns why it is still there, empty when it is not."""
    path = Path(message.directory)
    expected = Path(folder_of(message.job, message.identity)) / checkpoint_name(
        message.generation, message.step
    )
    if Path(*path.parts[-2:]) != expected:
        return f"{path} is not called {expected}"
    if path.is_symlink():
        return f"{path} is a link"
    try:
        return _remove(path) if path.is_dir() else ""
    except OSError as error:
        return f"{path} cannot be deleted: {error.strerror or error}"


def _remove(path: Path) -> str:
    """Renamed first: what is half removed must not look like a damaged checkpoint."""
    doomed = path.with_name(f"{TEMPORARY}{path.name}-deleted")
    path.rename(doomed)
    shutil.rmtree(doomed)
    with contextlib.suppress(OSError):  # others of the job are still there
        path.parent.rmdir()
    return ""
