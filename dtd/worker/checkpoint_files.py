"""Checkpoints on this worker's disk, as others may fetch them.

A resource name "checkpoint/DIRECTORY/NAME" names one published checkpoint; anything that would lead
out of the checkpoint directories is refused.  Blocking; the data port runs it in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dtd.errors import CheckpointError
from dtd.net.resource import Resource, file_blob

MANIFEST: Final = "manifest.json"
_RESOURCE: Final = re.compile(r"checkpoint/([A-Za-z0-9][\w.-]{0,127})/(g\d{1,10}-s\d{1,19})")


def open_checkpoint(directories: Sequence[Path], resource: str) -> Resource:
    """The files of a published checkpoint.

    Raises:
        CheckpointError: no such checkpoint is here.
    """
    named = _RESOURCE.fullmatch(resource)
    if named is None:
        raise CheckpointError(f"{resource!r} does not name a checkpoint")
    for directory in directories:
        folder = directory / named[1] / named[2]
        if (folder / MANIFEST).is_file():
            files = sorted(path for path in folder.iterdir() if path.is_file())
            return Resource(
                manifest=(folder / MANIFEST).read_bytes(),
                blobs=[file_blob(path) for path in files if path.name != MANIFEST],
            )
    raise CheckpointError(
        f"{resource} is not on this worker's disk", remedy="see `dtdctl checkpoints`"
    )
