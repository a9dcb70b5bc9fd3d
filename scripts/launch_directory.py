"""Where a local run keeps its daemons' state, logs and checkpoints, and what lies there in the end.

Kept unless it is to be discarded: what was trained should outlive the command that trained it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dtd.errors import UsageError
from dtd.train.checkpoint_format import MODEL_FILE, parse_name

_MANY: Final = 1000


@contextlib.contextmanager
def run_directory(given: Path | None, *, discard: bool, name: str) -> Iterator[Path]:
    """The directory of one run: the one that is given, a new one, or one that is removed.

    Args:
        given: by the person; made if missing.
        discard: nothing is to be kept.
        name: of the job; a new directory is called after it and the time.

    Raises:
        UsageError: it cannot be made or written.
    """
    if discard and given is not None:
        raise UsageError(
            f"--discard stands beside --state-dir {given}", remedy="give one of the two"
        )
    if discard:
        with tempfile.TemporaryDirectory(prefix="dtd-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    yield _made(given) if given is not None else _new(_runs(os.environ), name)


def _made(given: Path) -> Path:
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state-dir: {given} cannot be made: {error.strerror}") from None
    if not os.access(given, os.W_OK | os.X_OK):
        raise UsageError(f"--state-dir: {given} is not writable")
    return given.resolve()


def _runs(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "dtd" / "runs"


def _new(runs: Path, name: str) -> Path:
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1, _MANY):
        made = runs / (stem if number == 1 else f"{stem}-{number}")
        try:
            made.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"{made} cannot be made: {error.strerror}",
                remedy="name a directory with --state-dir DIR, or keep nothing with --discard",
            ) from None
        return made.resolve()
    raise UsageError(f"{runs} has {_MANY} runs of this second", remedy="use --state-dir DIR")


def newest_weights(directory: Path, spec: Mapping[str, Any], folder: str) -> Path | None:
    """The weights in the newest checkpoint of a job that any of the run's workers has written.

    Args:
        directory: the run's.
        spec: the job file as a map of tables.
        folder: name of the directory of the job's checkpoints.
    """
    elsewhere = spec["checkpoint"]["directory"]
    homes = [Path(elsewhere)] if elsewhere else directory.glob("*/checkpoints")
    found = [
        (key, file)
        for home in homes
        for file in (home / folder).glob(f"*/{MODEL_FILE}")
        if (key := parse_name(file.parent.name)) is not None
    ]
    return max(found)[1] if found else None


def step_of(weights: Path) -> int:
    """Committed steps of the checkpoint in which these weights lie."""
    key = parse_name(weights.parent.name)
    assert key is not None, weights
    return key[1]
