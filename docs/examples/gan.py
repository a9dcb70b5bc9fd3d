"""A GAN with two optimizers that update one after the other: points on a circle.

dtdctl submit docs/examples/gan.toml
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.utils.data import TensorDataset

NOISE = 4


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(NOISE, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
        )
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


class Circle:
    """Rows are points of the circle, each with the noise from which to generate one."""

    def __init__(self, points: int = 2000) -> None:
        self.points = points

    def build_model(self) -> Gan:
        return Gan()

    def train_dataset(self) -> TensorDataset:
        return self._draw(seed=0)

    def eval_dataset(self) -> TensorDataset:
        return self._draw(seed=1)

    def _draw(self, *, seed: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(seed)
        angles = 2 * math.pi * torch.rand(self.points, generator=draw)
        noise = torch.randn(self.points, NOISE, generator=draw)
        return TensorDataset(torch.stack([angles.cos(), angles.sin()], dim=1), noise)

    def build_optimizers(
        self, named_parameters: Sequence[tuple[str, nn.Parameter]]
    ) -> dict[str, torch.optim.Optimizer]:
        critic = [p for name, p in named_parameters if name.startswith("critic.")]
        generator = [p for name, p in named_parameters if name.startswith("generator.")]
        return {
            "critic": torch.optim.Adam(critic, lr=2e-3, betas=(0.5, 0.9)),
            "generator": torch.optim.Adam(generator, lr=1e-3, betas=(0.5, 0.9)),
        }

    def updates(self, step: int) -> list[str]:
        return ["critic", "generator"] if step % 2 else ["critic"]

    def loss(self, model: Gan, batch: tuple[Tensor, Tensor], update: str) -> Tensor:
        real, noise = batch
        fake = model.generator(noise)
        if update == "critic":
            return (softplus(-model.critic(real)) + softplus(model.critic(fake))).mean()
        return softplus(-model.critic(fake)).mean()

    def metrics(self, model: Gan, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, int]]:
        _, noise = batch
        distance = (model.generator(noise).norm(dim=1) - 1).abs()
        return {"distance_from_circle": (distance.sum(), len(noise))}
