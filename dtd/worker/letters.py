"""The directory through which workers of one user on a host hand each other open files.

It lies in the runtime directory that systemd gives a service, else in the worker's state directory,
and only its owner can enter it: so no other user can put anything into its sockets
(`dtd.net.descriptors`).  Blocking, for a moment.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger()

NAME: Final = "letters"


def letter_directory(state_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """The directory, made and emptied; None where it cannot be had: everything is sent then.

    Args:
        state_dir: this worker's alone, and locked.
        environ: the environment, for RUNTIME_DIRECTORY.
    """
    runtime = environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    directory = (Path(runtime) if runtime else state_dir) / NAME
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError("others than this worker's user can enter it")
        for left_over in directory.iterdir():  # by a process that was killed
            left_over.unlink()
    except OSError as error:
        log.warning(
            "memory_not_shared",
            directory=str(directory),
            reason=error.strerror or str(error),
            remedy="remove the directory; until then neighbours on this host send everything",
        )
        return None
    return directory
