"""A small ResNet that classifies images, trained as torchvision's reference trains its own.

    python docs/examples/loops/classify.py --images FOLDER                   # alone
    dtdctl run -- python docs/examples/loops/classify.py --images FOLDER     # on a cluster

FOLDER has train/CLASS/*.jpg and test/CLASS/*.jpg of 32x32 pixels, on every worker; without one the
images are stripes of four directions.  Mixup, label smoothing, a cosine after a warm-up, and an
average of the weights (EMA), which is what is evaluated.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.transforms import v2

import dtd


class Stripes(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Noisy stripes; the class is their direction."""

    classes = ("across", "down", "falling", "rising")

    def __init__(self, count: int, first: int, augment: v2.Transform) -> None:
        self.count, self.first, self.augment = count, first, augment

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        noise = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(self.first + row))
        down, across = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
        direction = row % len(self.classes)
        place = (down, across, across - down, across + down)[direction] + row
        return self.augment(torch.sin(place / 2.0) + noise), direction


def sets(images: Path | None) -> tuple[Any, Any]:
    """Rows to train on, and rows to evaluate."""
    augment = v2.RandomCrop(32, padding=4)
    if images is None:
        return Stripes(512, 0, augment), Stripes(128, 10_000, v2.Identity())
    plain = v2.Compose(
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)]
    )
    train = v2.Compose([plain, augment, v2.RandomHorizontalFlip()])
    return ImageFolder(images / "train", train), ImageFolder(images / "test", plain)


def main() -> None:
    """Train, and evaluate after each epoch."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=Path)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--lr", type=float, default=0.05)
    given = options.parse_args()
    rows, test = sets(given.images)
    classes = len(rows.classes)
    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=classes)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True).eval()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=given.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    steps = given.epochs * -(-len(rows) // given.batch)
    warm_up = min(10, steps // 2)
    schedule = lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 0.1, total_iters=warm_up),
            lr_scheduler.CosineAnnealingLR(optimizer, steps - warm_up),
        ],
        [warm_up],
    )
    mix = v2.MixUp(num_classes=classes, alpha=0.2)  # draws by row: the same when a step is redone
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def metrics(_: nn.Module, batch: Any) -> Mapping[str, tuple[Any, int]]:
        x, y = batch
        logits = ema(x)
        return {
            "loss": (nn.functional.cross_entropy(logits, y, reduction="sum"), len(y)),
            "accuracy": ((logits.argmax(1) == y).sum(), len(y)),
        }

    with dtd.join(model, optimizer, schedule) as run:
        run.register("ema", ema)
        run.evaluate(test, metrics)
        for x, y in run.batches(rows, global_batch_size=given.batch, epochs=given.epochs):
            mixed, labels = mix(x, y)
            criterion(model(mixed), labels).backward()
            optimizer.step()
            ema.update_parameters(model)
            if run.is_main and run.step_number % 8 == 0:
                print(f"step {run.step_number}: loss {run.loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
