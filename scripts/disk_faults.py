"""What may happen to checkpoints on a disk: to one that is there, or to one while it is saved.

Every fault is a function of a job's directory, of which it takes a sound checkpoint, and of a
random generator.  Those that save one say which; it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dtd.errors import CheckpointError
from dtd.train.checkpoint_format import (
    MANIFEST_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    checkpoint_name,
    list_checkpoints,
    parse_name,
    verify,
)

FILES: Final = (MODEL_FILE, OPTIMIZER_FILE, MANIFEST_FILE)
DISK_EVENTS: Final = 46
"""One more than saving a checkpoint of the faults' job takes: sometimes nobody dies."""


Fault = Callable[[Path, random.Random], Path | None]


def sound(job: Path) -> list[Path]:
    """Checkpoints that verify, newest first."""
    verified = []
    for path in list_checkpoints(job.parent, job.name):
        with contextlib.suppress(CheckpointError):
            verify(path)
            verified.append(path)
    return verified


def _pick(job: Path, rng: random.Random) -> Path:
    """One of the sound checkpoints, the newest most often."""
    newest, *others = sound(job)
    return rng.choice([newest] * len(others) + others)


def flip_bit(job: Path, rng: random.Random) -> None:
    """One bit of one file is another one."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut_short(job: Path, rng: random.Random) -> None:
    """The end of a file is missing, or it is empty."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = file.read_bytes()
    file.write_bytes(content[: rng.choice([0, rng.randrange(len(content) - 1)])])


def zeros(job: Path, rng: random.Random) -> None:
    """A file has its length but not its last blocks, as after a power cut."""
    path = _pick(job, rng)
    file = path / rng.choice(FILES)
    content = file.read_bytes()
    kept = rng.randrange(len(content) // 2)
    file.write_bytes(content[:kept] + bytes(len(content) - kept))


def delete_file(job: Path, rng: random.Random) -> None:
    """A file is gone."""
    path = _pick(job, rng)
    (path / rng.choice(FILES)).unlink()


def foreign_file(job: Path, rng: random.Random) -> None:
    """A file is another checkpoint's: sound by itself, but of another state."""
    path = _pick(job, rng)
    other = rng.choice([one for one in sound(job) if one != path])
    file = rng.choice(FILES)
    shutil.copyfile(other / file, path / file)


def rename_directory(job: Path, rng: random.Random) -> None:
    """A checkpoint says that it is newer than it is."""
    path = _pick(job, rng)
    generation, step = parse_name(path.name) or (0, 0)
    renamed = path.with_name(checkpoint_name(generation + 1, step + 1))
    path.rename(renamed)


def empty_directory(job: Path, rng: random.Random) -> None:
    """A directory of the right name and nothing in it."""
    path = job / checkpoint_name(9, rng.randrange(1000))
    path.mkdir(exist_ok=True)


def killed_while_saving(job: Path, rng: random.Random) -> Path:
    """SIGKILL somewhere between the first byte and the last fsync."""
    return _save_again(job, "--die-at", str(rng.randrange(DISK_EVENTS)))


def no_space(job: Path, rng: random.Random) -> Path:
    """The disk takes no more bytes."""
    return _save_again(job, "--file-limit", str(rng.randrange(34_000)))


def read_only(job: Path, rng: random.Random) -> Path:
    """Whoever saves has no right to."""
    del rng
    job.chmod(0o555)
    added = _save_again(job, "--unprivileged")
    job.chmod(0o755)
    return added


def _save_again(job: Path, *options: str) -> Path:
    newest = sound(job)[0]
    generation, step = parse_name(newest.name) or (0, 0)
    added = job / checkpoint_name(generation + 1, step)
    arguments = [str(newest), str(job), str(generation + 1), *options]
    command = [sys.executable, "-m", "scripts.checkpoint_saver", *arguments]
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    return added


FAULTS: Final[Mapping[str, Fault]] = {
    "bit flipped": flip_bit,
    "cut short": cut_short,
    "zeros after a power cut": zeros,
    "file deleted": delete_file,
    "file of another checkpoint": foreign_file,
    "directory renamed": rename_directory,
    "empty directory": empty_directory,
    "killed while saving": killed_while_saving,
    "no space": no_space,
    "read-only directory": read_only,
}
