"""CIFAR-10: its archive, image folders, augmentation and network."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from dtd.errors import TaskError
from dtd.tasks.cifar10 import (
    Cifar10,
    ImageRows,
    ResNet18,
    crop_and_flip,
)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The published format with a few rows; the list of checksums is that of these files."""
    import torchvision.datasets

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    draw = np.random.default_rng(0)

    def write(name: str, content: object) -> list[str]:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data, usedforsecurity=False).hexdigest()]

    def batch(rows: int) -> dict[str, object]:
        pixels = draw.integers(0, 256, (rows, 3072), dtype=np.uint8)
        return {"data": pixels, "labels": [row % 10 for row in range(rows)]}

    kind = torchvision.datasets.CIFAR10
    names = [f"data_batch_{number}" for number in range(1, 6)]
    monkeypatch.setattr(kind, "train_list", [write(name, batch(4)) for name in names])
    monkeypatch.setattr(kind, "test_list", [write("test_batch", batch(6))])
    _, md5 = write("batches.meta", {"label_names": [str(n) for n in range(10)]})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5})
    return tmp_path


def made_up(*, augment: bool) -> ImageRows:
    draw = np.random.default_rng(1)
    images = draw.integers(1, 256, (64, 32, 32, 3), dtype=np.uint8)
    return ImageRows(images=images, labels=np.arange(64) % 10, augment=augment)


def test_the_published_archive_is_read(archive: Path) -> None:
    task = Cifar10(data=str(archive), width=4)
    train, test = task.train_dataset(), task.eval_dataset()
    assert (len(train), len(test)) == (20, 6)
    assert (train.augment, test.augment) == (True, False)
    batch = train.fetch([0, 5, 19], epoch=0, seed=0)
    assert batch[0].shape == (3, 3, 32, 32)
    assert batch[1].tolist() == [0, 1, 3]
    model = task.build_model()
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_missing_data_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="CIFAR10 is missing") as caught:
        Cifar10(data=str(tmp_path)).train_dataset()
    assert "[task] table" in caught.value.remedy


def test_the_real_images_are_read(cifar10_folder: Path) -> None:
    task = Cifar10(data=str(cifar10_folder), augment=False, width=4)
    test = task.eval_dataset()
    assert len(test) == 2000
    assert np.bincount(test.labels).tolist() == [200] * 10
    inputs, labels = test.fetch(list(range(0, 2000, 50)), epoch=0, seed=0)
    assert inputs.mean().abs() < 0.3
    assert 0.7 < inputs.std() < 1.3
    metrics = task.metrics(task.build_model().eval(), (inputs, labels))
    assert metrics["loss"][1] == metrics["accuracy"][1] == 40


def test_a_row_is_augmented_alike_in_whatever_batch_it_comes() -> None:
    rows = made_up(augment=True)
    together, _ = rows.fetch(list(range(64)), epoch=5, seed=3)
    backwards, _ = rows.fetch([40, 7], epoch=5, seed=3)
    assert torch.equal(backwards[0], together[40])
    assert torch.equal(backwards[1], together[7])
    another_epoch, _ = rows.fetch(list(range(64)), epoch=6, seed=3)
    same = [bool(torch.equal(a, b)) for a, b in zip(together, another_epoch, strict=True)]
    assert sum(same) < 8


def test_each_image_is_one_of_the_possible_crops() -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(1, 256, (300, 8, 8, 3), dtype=np.uint8)
    moved = crop_and_flip(images, list(range(300)), epoch=0, seed=0)
    seen = set()
    for before, after in zip(images, moved, strict=True):
        padded = np.pad(before, ((4, 4), (4, 4), (0, 0)))
        found = [
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (False, True)
            if np.array_equal(crop(padded, down, right, flip=flip), after)
        ]
        assert len(found) == 1
        seen.add(found[0])
    assert {down for down, _, _ in seen} == set(range(9))
    assert {right for _, right, _ in seen} == set(range(9))
    assert 130 < len(seen) <= 162  # 300 draws of 9 * 9 * 2 possibilities


def crop(padded: np.ndarray, down: int, right: int, *, flip: bool) -> np.ndarray:
    cut = padded[down : down + 8, right : right + 8]
    return cut[:, ::-1] if flip else cut


def test_it_is_the_published_network() -> None:
    model = ResNet18()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 3 shortcuts change the shape
    assert not any(isinstance(m, torch.nn.MaxPool2d) for m in model.modules())
