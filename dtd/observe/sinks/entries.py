"""Entries about jobs for a sink, and their lines from process to process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dtd.job.terms import folder_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """Begin of a job's figures.

    Attributes:
        identity: tells it from another cluster's job of the same id.
        settings: those of its job file, by "table.key".
    """

    job: str
    identity: str
    unix_s: float
    settings: Mapping[str, bool | float | str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Values of one step of a job; `regular` ones are thinned out as they become many."""

    job: str
    step: int
    unix_s: float
    scalars: Mapping[str, float]
    regular: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job has ended: done, failed or cancelled, with its final figures."""

    job: str
    identity: str
    unix_s: float
    state: str
    result: Mapping[str, float] = field(default_factory=dict)


Entry = Began | Figures | Ended

_KINDS: Final[Mapping[str, type[Entry]]] = {"began": Began, "figures": Figures, "ended": Ended}


def to_line(entry: Entry) -> bytes:
    """Encode an entry as one line of JSON."""
    kind = next(name for name, made in _KINDS.items() if isinstance(entry, made))
    return json.dumps({"kind": kind, **dataclasses.asdict(entry)}).encode() + b"\n"


def from_line(line: bytes) -> Entry:
    """Decode a line made by `to_line`."""
    values: dict[str, Any] = json.loads(line)
    return _KINDS[values.pop("kind")](**values)


TENSORBOARD: Final = "tensorboard"
WANDB: Final = "wandb"
"""Directories within the state directory; the second name is W&B's own."""


def curves_of(state_dir: Path, job: str, identity: str) -> list[Path]:
    """Return the directories to delete with a job."""
    runs = (state_dir / WANDB).glob(f"offline-run-*-{folder_of(job, identity)}")
    return [state_dir / TENSORBOARD / job, *runs]
