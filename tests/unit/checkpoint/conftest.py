"""Checkpoints without tensors from torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dtd.checkpoint.format import FORMAT, Manifest
from dtd.checkpoint.retention import Rules
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.checkpoint.writer import CheckpointWriter, Draft, RawTensor


def manifest(step: int, generation: int = 1) -> Manifest:
    return Manifest(
        format=FORMAT,
        job="job",
        job_name="name",
        task="digits",
        generation=generation,
        step=step,
        epoch=0,
        offset=step,
        digest="00" * 16,
        parent="",
        metrics={},
        world_size=2,
        files={},
        state={"step": step},
        tensors=("model.w", "optimizer.0.m"),
    )


def draft(step: int, generation: int = 1) -> Draft:
    content = memoryview(np.arange(6, dtype=np.float32)).cast("B")
    raw = RawTensor(name="w", dtype="F32", shape=(2, 3), content=(content,))
    return Draft(
        manifest=manifest(step, generation),
        files={MODEL_FILE: [raw], OPTIMIZER_FILE: [replace(raw, name="optimizer.0.m")]},
    )


@pytest.fixture
def make_draft():
    """Drafts of a checkpoint with two small tensors: make_draft(step, generation=1)."""
    return draft


def save(
    directory: Path,
    *steps: int,
    generation: int = 1,
    metrics=None,
    keep: int = 100,
    best: str = "",
) -> list:
    writer = CheckpointWriter(directory, Rules(keep=keep, best_metric=best))
    for step in steps:
        writer.write(draft(step, generation))
        writer.publish((metrics or {}).get(step, {}))
    writer.flush()
    results = writer.finished()
    writer.close()
    return results


@pytest.fixture
def save_checkpoints():
    """Writes and publishes: save_checkpoints(directory, *steps, metrics={}, keep=100, best="")."""
    return save
