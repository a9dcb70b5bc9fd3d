"""`cifar10`: 32x32 colour images of ten classes, learned by ResNet-18.

The images come from torchvision's archive (`<data>/cifar-10-batches-py`) or from an image folder
(`<data>/train/<class>/*.jpg|png` and `<data>/test/...`), which may hold any number of classes.
Either way they are read once into one array of bytes; fetching a batch is then a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dtd.engine.sampler import row_key
from dtd.tasks.archives import open_archive
from dtd.tasks.arguments import require_positive
from dtd.tasks.classification import classification_loss, classification_metrics
from dtd.tasks.image_folder import class_names, load_image_folder
from dtd.tasks.resnet import ResNet18

_SIZE = 32
_MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
_SPREAD = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
"""Standard deviation of CIFAR-10's training pixels by channel, on a scale of 0..1."""


class Cifar10:
    """CIFAR-10 (or a folder of images of its size) and ResNet-18.

    Args:
        data: directory of the archive or of the image folder.
        augment: crop and flip training images at random.
        width: channels of the network's first stage.
        download: fetch the archive when it is missing.
    """

    def __init__(
        self,
        *,
        data: str = "data",
        augment: bool = True,
        width: int = 64,
        download: bool = False,
    ) -> None:
        require_positive(width=width)
        self._data = data
        self._augment = augment
        self._width = width
        self._download = download

    def build_model(self) -> nn.Module:
        """ResNet-18 with one output for each class."""
        folder = self._training_folder()
        classes = len(class_names(folder)) if folder.is_dir() else 10
        return ResNet18(classes=classes, width=self._width)

    def train_dataset(self) -> ImageRows:
        """The training images, augmented if asked for."""
        return self._rows(train=True)

    def eval_dataset(self) -> ImageRows:
        """The test images as they are."""
        return self._rows(train=False)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy."""
        return classification_loss(model, batch)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        """Loss and accuracy."""
        return classification_metrics(model, batch)

    def _training_folder(self) -> Path:
        return Path(self._data) / "train"

    def _rows(self, *, train: bool) -> ImageRows:
        augment = self._augment and train
        folder = self._training_folder()
        if folder.is_dir():
            wanted = folder if train else Path(self._data) / "test"
            images, labels = load_image_folder(wanted, class_names(folder), _SIZE)
            return ImageRows(images=images, labels=labels, augment=augment)
        archive = open_archive("CIFAR10", self._data, train=train, download=self._download)
        labels = np.array(archive.targets, dtype=np.int64)
        return ImageRows(images=archive.data, labels=labels, augment=augment)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRows:
    """Images as bytes, (rows, height, width, 3), that become normalised floats when fetched."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    augment: bool

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """One row as it is, not augmented."""
        images, labels = self._batch(self.images[row : row + 1], [row])
        return images[0], labels[0]

    def fetch(self, row_ids: Sequence[int], *, epoch: int, seed: int) -> tuple[Tensor, Tensor]:
        """(rows, 3, height, width) floats and class numbers."""
        images = self.images[np.asarray(row_ids)]
        if self.augment:
            images = crop_and_flip(images, row_ids, epoch=epoch, seed=seed)
        return self._batch(images, row_ids)

    def _batch(
        self, images: npt.NDArray[np.uint8], row_ids: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        planes = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        inputs = (planes.float() / 255.0 - _MEAN) / _SPREAD
        return inputs, torch.from_numpy(self.labels[np.asarray(row_ids)])


# --- random crop and flip, drawn from a row's key and nothing else -------------------------------
#
# The same row in the same epoch gets the same crop on every worker and in every redo of a step.
# Whole batches are done in one gather; global random state is neither read nor changed.


_PADDING = 4


def crop_and_flip(
    images: npt.NDArray[np.uint8], row_ids: Sequence[int], *, epoch: int, seed: int
) -> npt.NDArray[np.uint8]:
    """Shift each image by up to 4 pixels each way (black comes in) and mirror half of them.

    Args:
        images: (rows, height, width, 3), in the order of `row_ids`.
        row_ids: the dataset's row numbers, which key the draws.
        epoch: keys the draws.
        seed: keys the draws.
    """
    keys = np.array([row_key(seed, epoch, row) for row in row_ids], dtype=np.uint64)
    down, right, flip = _draws(keys)
    rows, height, width, _ = images.shape
    border = (_PADDING, _PADDING)
    padded = np.pad(images, ((0, 0), border, border, (0, 0)))
    ys = down[:, None] + np.arange(height)
    columns = np.arange(width)
    xs = np.where(flip[:, None], columns[::-1], columns) + right[:, None]
    row = np.arange(rows)[:, None, None]
    moved: npt.NDArray[np.uint8] = padded[row, ys[:, :, None], xs[:, None, :]]
    return moved


def _draws(
    keys: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    shifts = np.uint64(2 * _PADDING + 1)
    down = ((keys & np.uint64(0xFFFF)) % shifts).astype(np.int64)
    right = ((keys >> np.uint64(16) & np.uint64(0xFFFF)) % shifts).astype(np.int64)
    flip = (keys >> np.uint64(32) & np.uint64(1)).astype(np.bool_)
    return down, right, flip
