"""Loss and metrics of every task that names the class of a row; a batch is (inputs, labels)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  the name everybody knows it by
from torch import Tensor, nn


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross-entropy over the rows."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def classification_metrics(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> dict[str, tuple[Tensor, int]]:
    """Sum and count of "loss" and "accuracy" over the rows."""
    inputs, labels = batch
    logits = model(inputs)
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    correct = (logits.argmax(dim=1) == labels).sum()
    return {"loss": (loss, len(labels)), "accuracy": (correct, len(labels))}
