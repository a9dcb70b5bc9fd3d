"""`cifar10`: 32x32 colour images of ten classes, learned by ResNet-18.

The images come from torchvision's archive (`<data>/cifar-10-batches-py`) or from an image folder
(`<data>/train/<class>/*.jpg|png` and `<data>/test/...`), which may hold any number of classes.
Either way they are read once into one array of bytes; fetching a batch is then a gather.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dtd.engine.sampler import row_key
from dtd.errors import TaskError
from dtd.tasks import require_positive
from dtd.tasks.classification import classification_loss, classification_metrics, open_archive

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

    loss = staticmethod(classification_loss)
    metrics = staticmethod(classification_metrics)

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
    """Shift each image by up to 4 pixels each way (black comes in) and mirror half of them."""
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


_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def class_names(folder: Path) -> list[str]:
    """Sorted names of the class folders."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise TaskError(
            f"the image folder {folder.absolute()} cannot be read: {error.strerror}",
            remedy="it should hold one folder for each class",
        ) from error
    if not names:
        raise TaskError(
            f"the image folder {folder.absolute()} holds no class",
            remedy="put each class's images into a folder of its own",
        )
    return names


def load_image_folder(
    folder: Path, classes: Sequence[str], size: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """All images, (rows, size, size, 3), and their class numbers, in the order of their names.

    Raises:
        TaskError: the classes are not `classes`, there is no image, or one cannot be used.
    """
    found = class_names(folder)
    if found != list(classes):
        odd = ", ".join(sorted(set(found) ^ set(classes)))
        raise TaskError(
            f"the classes under {folder.absolute()} are not those of the training images: {odd}",
            remedy="train/ and test/ must hold the same class folders",
        )
    paths, labels = _listing(folder, classes)
    images = np.empty((len(paths), size, size, 3), dtype=np.uint8)
    _decode_all(paths, images)
    return images, np.array(labels, dtype=np.int64)


def _listing(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        inside = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in _SUFFIXES)
        paths += inside
        labels += [number] * len(inside)
    if not paths:
        raise TaskError(
            f"the image folder {folder.absolute()} holds no .jpg or .png image",
            remedy="set data in the [task] table to the folder that holds train/ and test/",
        )
    return paths, labels


def _decode_all(paths: Sequence[Path], images: npt.NDArray[np.uint8]) -> None:
    try:
        from PIL import Image
    except ImportError as error:
        raise TaskError(
            "reading an image folder needs the package pillow", remedy="type: pip install pillow"
        ) from error

    def decode(number: int) -> None:
        path = paths[number]
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise TaskError(
                f"the image {path.absolute()} cannot be decoded: {error}",
                remedy="replace or remove the file",
            ) from error
        if pixels.shape != images.shape[1:]:
            height, width, _ = pixels.shape
            wanted = f"{images.shape[2]}x{images.shape[1]}"
            raise TaskError(
                f"the image {path.absolute()} is {width}x{height}, not {wanted}",
                remedy=f"resize it to {wanted}",
            )
        images[number] = pixels

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode, range(len(paths)), chunksize=64):
            pass  # a failed decode is raised here


class Block(nn.Module):
    """Two 3x3 convolutions and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The whole network."""

    def __init__(self, *, classes: int = 10, width: int = 64) -> None:
        super().__init__()
        self.stem = _conv3x3(3, width, 1)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _stage(width, width, stride=1),
            _stage(width, 2 * width, stride=2),
            _stage(2 * width, 4 * width, stride=2),
            _stage(4 * width, 8 * width, stride=2),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(images)))
        x = self.stages(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)
