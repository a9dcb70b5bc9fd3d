"""The workers' state directories, and their disks' faults: full, read-only, rotten.

Each directory is a small file system of its own, in a mount namespace that only the daemons see and
that vanishes with this process.  The checkpoints in it are mounted once more, since only they can
be made read-only: other files of a worker are always open for writing.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from scripts.cluster.namespaces import Namespace

_SIZE: Final = "256m"
_CHECKPOINTS: Final = "checkpoints"
_FILLER: Final = "filler"
_FILLER_PIECE: Final = bytes(1024 * 1024)
_SMALLEST_PIECE: Final = 1024
_BUSY_S: Final = 10.0

T = TypeVar("T")


class SmallDisks:
    """One small file system in memory for each of these directories."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._space = Namespace("mnt")
        self._space.run("mount", "--make-rprivate", "/")
        for directory in directories:
            directory.mkdir(parents=True, exist_ok=True)
            self._space.run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "dtd", str(directory))
            saved = str(directory / _CHECKPOINTS)
            self._space.run("mkdir", saved)
            self._space.run("mount", "--bind", saved, saved)

    def wrapped(self, command: Sequence[str]) -> list[str]:
        """A daemon's command, to be run where its disk is."""
        return self._space.wrapped(command)

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function where the directories can be seen."""
        return self._space.inside(function)

    def set_read_only(self, directory: Path, *, read_only: bool) -> None:
        """Make its checkpoints read-only, or writable; waits for one that is being written.

        Raises:
            TimeoutError: there is always one.
        """
        mode = "ro" if read_only else "rw"
        deadline_s = time.monotonic() + _BUSY_S
        while time.monotonic() < deadline_s:
            try:
                self._space.run(
                    "mount", "-o", f"remount,bind,{mode}", str(directory / _CHECKPOINTS)
                )
            except subprocess.CalledProcessError as error:
                if b"busy" not in error.stderr:
                    raise
            else:
                return
        raise TimeoutError(f"{directory} was busy for {_BUSY_S:g} s")

    def fill(self, directory: Path) -> None:
        """Leave no room."""
        self.inside(lambda: _fill(directory / _FILLER))

    def empty(self, directory: Path) -> None:
        self.inside(lambda: (directory / _FILLER).unlink(missing_ok=True))

    def close(self) -> None:
        """Let go of it; the file systems end with the last process inside."""
        self._space.close()


def rot(directory: Path, chance: random.Random) -> str:
    """Damage the newest checkpoint below a state directory; what was done, or "" if there is none.

    One byte of one of its files is changed, or one file is gone.
    """
    manifests = [*directory.glob("checkpoints/*/*/manifest.json")]
    if not manifests:
        return ""
    newest = max(manifests, key=lambda path: path.stat().st_mtime).parent
    victim = chance.choice(sorted(newest.iterdir()))
    label = f"{newest.name}/{victim.name}"
    if chance.random() < 0.5:
        victim.unlink()
        return f"{label} deleted"
    with victim.open("r+b") as file:
        place = chance.randrange(os.fstat(file.fileno()).st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))
    return f"{label}: byte {place} changed"


def _fill(filler: Path) -> None:
    piece = _FILLER_PIECE
    with filler.open("wb", buffering=0) as file:
        while len(piece) >= _SMALLEST_PIECE:
            try:
                file.write(piece)
            except OSError:
                piece = piece[: len(piece) // 2]
