"""A small Vision Transformer for handwritten digits.

dtdctl submit docs/examples/vit.toml
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

CLASSES = 10


class VisionTransformer(nn.Module):
    """Patches of an image, a token for its class, and blocks of attention."""

    def __init__(self, *, size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        patches = (size // patch) ** 2
        self.embed = nn.Conv2d(1, width, kernel_size=patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        block = nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.1,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(images).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), -1, -1)
        tokens = torch.cat([token, patches], dim=1) + self.places
        return self.head(self.norm(self.blocks(tokens)[:, 0]))


class DigitsViT:
    """8x8 images of digits, which come with scikit-learn."""

    def __init__(self, width: int = 64, depth: int = 4, heads: int = 4) -> None:
        from sklearn.datasets import load_digits

        self.width, self.depth, self.heads = width, depth, heads
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)

    def build_model(self) -> nn.Module:
        return VisionTransformer(
            size=8, patch=2, width=self.width, depth=self.depth, heads=self.heads
        )

    def train_dataset(self) -> TensorDataset:
        return TensorDataset(self.images[:1500], self.labels[:1500])

    def eval_dataset(self) -> TensorDataset:
        return TensorDataset(self.images[1500:], self.labels[1500:])

    def build_optimizer(
        self, named_parameters: Sequence[tuple[str, nn.Parameter]]
    ) -> torch.optim.Optimizer:
        """Weights of layers decay; biases, norms, the token and the position embeddings do not."""
        decay = [p for _, p in named_parameters if p.ndim >= 2 and p.shape[0] != 1]
        rest = [p for _, p in named_parameters if p.ndim < 2 or p.shape[0] == 1]
        groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)

    def metrics(
        self, model: nn.Module, batch: tuple[Tensor, Tensor]
    ) -> dict[str, tuple[Tensor, int]]:
        images, labels = batch
        return {"accuracy": ((model(images).argmax(1) == labels).sum(), len(labels))}
