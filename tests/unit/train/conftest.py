"""A small replica."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtd.engine.sampler import Ledger
from dtd.job import OptimizerTable
from dtd.train.optim.optimizer import build_optimizer
from dtd.train.state.replica import Replica, trained_parameters
from dtd.train.warm_up.model_setup import loss_scaler


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
        ledger=Ledger(length=10),
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
