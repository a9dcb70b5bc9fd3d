"""Files on the coordinator's disk that have a job's curves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dtd.job.identity import folder_of

TENSORBOARD: Final = "tensorboard"
WANDB: Final = "wandb"
"""Directories within the state directory; the second name is W&B's own."""


def wandb_run_id(job: str, identity: str) -> str:
    """A job's run in W&B, the same whenever the coordinator starts again."""
    return folder_of(job, identity)


def curves_of(state_dir: Path, job: str, identity: str) -> list[Path]:
    """The directories that a deleted job takes along."""
    runs = (state_dir / WANDB).glob(f"offline-run-*-{wandb_run_id(job, identity)}")
    return [state_dir / TENSORBOARD / job, *runs]
