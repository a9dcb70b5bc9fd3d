"""A small replica, and checkpoints without tensors from torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dtd.checkpoint.format import FORMAT, Manifest
from dtd.checkpoint.retention import Rules
from dtd.checkpoint.tensor_file import MODEL_FILE, OPTIMIZER_FILE
from dtd.checkpoint.writer import CheckpointWriter, Draft, RawTensor
from dtd.engine.ledger import Ledger
from dtd.job import OptimizerTable
from dtd.train.model_setup import loss_scaler
from dtd.train.optimizer.build import build_optimizer
from dtd.train.state.replica import Replica, trained_parameters


class Tied(nn.Module):
    """Shared weights, a frozen layer and BatchNorm."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.out = nn.Linear(width, width, bias=False)
        self.out.weight = self.embed.weight
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x):
        return self.out(self.frozen(self.norm(self.embed(x))))


def replica(name: str = "adamw", width: int = 3, updates: int = 2) -> Replica:
    torch.manual_seed(1)
    model = Tied(width)
    table = OptimizerTable(name=name, lr=0.1, momentum=0.9 if name == "sgd" else 0.0)
    trained = trained_parameters(model)
    optimizer = build_optimizer(table, [parameter for _, parameter in trained])
    own = Replica(
        model=model,
        optimizer=optimizer,
        base_lrs=[0.1],
        scaler=loss_scaler("float16"),
        trained=trained,
        ledger=Ledger(10),
    )
    for update in range(updates):
        generator = torch.Generator().manual_seed(update)
        model(torch.randn(4, width, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        own.updates = own.step = update + 1
    return own


@pytest.fixture
def make_replica():
    """Builds equal replicas: make_replica(name="adamw", width=3, updates=2)."""
    return replica


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
