"""Row weights: one point in fifty is of the rare class, which should fill half of every batch.

dtdctl submit docs/examples/order.toml
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class RareClass:
    def __init__(self, points: int = 1000) -> None:
        draw = torch.Generator().manual_seed(0)
        self.labels = (torch.arange(points) % 50 == 0).long()
        self.points = torch.randn(points, 2, generator=draw) + 2.5 * self.labels[:, None]

    def build_model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def train_dataset(self) -> TensorDataset:
        return TensorDataset(self.points, self.labels)

    def row_weights(self) -> Tensor:
        counts = torch.bincount(self.labels)
        return 1.0 / counts[self.labels]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        points, labels = batch
        return nn.functional.cross_entropy(model(points), labels)

    def eval_dataset(self) -> TensorDataset:
        return self.train_dataset()

    def metrics(
        self, model: nn.Module, batch: tuple[Tensor, Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        points, labels = batch
        found = (model(points).argmax(1) == 1) & (labels == 1)
        return {"recall": (found.sum(), (labels == 1).sum())}
