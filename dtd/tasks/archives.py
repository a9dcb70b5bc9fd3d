"""Opens MNIST and CIFAR-10 in their published formats, through torchvision.

torchvision says what it misses in its own words; here that becomes one sentence that also says
what to type.  Several workers of a host may start at once, so a download holds a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dtd.errors import TaskError


def open_archive(name: str, directory: str, *, train: bool, download: bool) -> Any:
    """The torchvision dataset called `name` ("MNIST" or "CIFAR10") under `directory`.

    Raises:
        TaskError: torchvision or the data is missing, damaged or cannot be downloaded.
    """
    try:
        import torchvision.datasets
    except ImportError as error:
        raise TaskError(
            f"reading {name} needs the package torchvision", remedy="type: pip install torchvision"
        ) from error
    kind = getattr(torchvision.datasets, name)
    root = Path(directory)
    if not download:
        return _open(kind, name, root, train)
    try:
        with _one_process_at_a_time(root):
            return kind(root, train=train, download=True)
    except (OSError, RuntimeError) as error:
        raise TaskError(
            f"{name} could not be downloaded to {root.absolute()}: {error}",
            remedy="check the network and the directory, or put the files there yourself",
        ) from error


def _open(kind: Any, name: str, root: Path, train: bool) -> Any:
    try:
        return kind(root, train=train, download=False)
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise TaskError(
            f"{name} is missing or damaged under {root.absolute()}: {error}",
            remedy='set download = true, or data = "DIRECTORY", in the [task] table',
        ) from error


@contextlib.contextmanager
def _one_process_at_a_time(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".download.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file closes
        yield
