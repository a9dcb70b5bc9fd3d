"""CIFAR-10: its archive, image folders, augmentation and network."""

from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dtd.errors import TaskError
from dtd.tasks.cifar10 import (
    Cifar10,
    ImageRows,
    ResNet18,
    class_names,
    crop_and_flip,
    load_image_folder,
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


def test_a_damaged_archive_is_refused(archive: Path) -> None:
    (archive / "cifar-10-batches-py" / "data_batch_2").write_bytes(b"torn")
    with pytest.raises(TaskError, match="missing or damaged"):
        Cifar10(data=str(archive)).train_dataset()


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


def test_normalisation_undone_gives_the_stored_bytes() -> None:
    rows = made_up(augment=False)
    inputs, _ = rows.fetch([7], epoch=0, seed=0)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    spread = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
    pixels = ((inputs[0] * spread + mean) * 255).round().to(torch.uint8).permute(1, 2, 0)
    assert np.array_equal(pixels.numpy(), rows.images[7])
    assert torch.equal(rows[7][0], inputs[0])


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


def test_draws_depend_on_seed_epoch_and_row_only() -> None:
    images = np.tile(np.arange(64, dtype=np.uint8).reshape(1, 8, 8, 1) + 1, (50, 1, 1, 3))
    rows = list(range(50))
    first = crop_and_flip(images, rows, epoch=1, seed=2)
    np.random.seed(5)  # the process's generators do not matter
    assert np.array_equal(crop_and_flip(images, rows, epoch=1, seed=2), first)
    for other in (
        crop_and_flip(images, rows, epoch=2, seed=2),
        crop_and_flip(images, rows, epoch=1, seed=3),
        crop_and_flip(images, rows[::-1], epoch=1, seed=2),
    ):
        assert not np.array_equal(other, first)


def paint(path: Path, colour: tuple[int, int, int], size: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        paint(tmp_path / part / "zebra" / "0.png", (1, 2, 3))
        paint(tmp_path / part / "ant" / "1.png", (4, 5, 6))
        paint(tmp_path / part / "ant" / "0.png", (7, 8, 9))
        (tmp_path / part / "ant" / "notes.txt").write_text("not an image")
    return tmp_path


def test_rows_come_in_the_order_of_their_names(folder: Path) -> None:
    assert class_names(folder / "train") == ["ant", "zebra"]
    images, labels = load_image_folder(folder / "train", ["ant", "zebra"], 32)
    assert labels.tolist() == [0, 0, 1]
    assert images[:, 0, 0, 0].tolist() == [7, 4, 1]
    assert images.shape == (3, 32, 32, 3)
    assert images.dtype == np.uint8


def test_the_model_has_as_many_outputs_as_there_are_classes(folder: Path) -> None:
    task = Cifar10(data=str(folder), width=2)
    inputs, _ = task.train_dataset().fetch([0, 1, 2], epoch=0, seed=0)
    assert task.build_model()(inputs).shape == (3, 2)


def test_greyscale_and_palette_images_become_colour(folder: Path) -> None:
    Image.new("L", (32, 32), 50).save(folder / "train" / "ant" / "2.png")
    images, _ = load_image_folder(folder / "train", ["ant", "zebra"], 32)
    assert images[2, 0, 0].tolist() == [50, 50, 50]


def test_a_wrong_size_names_the_file(folder: Path) -> None:
    paint(folder / "train" / "ant" / "big.png", (0, 0, 0), size=64)
    with pytest.raises(TaskError, match=r"big\.png is 64x64, not 32x32"):
        Cifar10(data=str(folder)).train_dataset()


def test_a_torn_image_names_the_file(folder: Path) -> None:
    (folder / "train" / "zebra" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(TaskError, match=r"torn\.jpg cannot be decoded"):
        Cifar10(data=str(folder)).train_dataset()


def test_test_classes_must_be_the_training_classes(folder: Path) -> None:
    paint(folder / "test" / "bee" / "0.png", (0, 0, 0))
    with pytest.raises(TaskError, match="not those of the training images: bee"):
        Cifar10(data=str(folder)).eval_dataset()


def test_a_missing_test_folder_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "ant" / "0.png", (0, 0, 0))
    with pytest.raises(TaskError, match=r"/test cannot be read: No such file"):
        Cifar10(data=str(tmp_path)).eval_dataset()


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(TaskError, match="holds no class"):
        Cifar10(data=str(tmp_path)).build_model()
    (tmp_path / "train" / "ant").mkdir()
    with pytest.raises(TaskError, match=r"holds no \.jpg or \.png"):
        Cifar10(data=str(tmp_path)).train_dataset()


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(TaskError, match="pip install pillow"):
        Cifar10(data=str(folder)).train_dataset()


def test_it_is_the_published_network() -> None:
    model = ResNet18()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 17 + 3  # 3 shortcuts change the shape
    assert not any(isinstance(m, torch.nn.MaxPool2d) for m in model.modules())


def test_the_last_stage_sees_4x4_pixels() -> None:
    model = ResNet18(classes=7, width=4).eval()
    images = torch.zeros(2, 3, 32, 32)
    assert model.stages(model.norm(model.stem(images))).shape == (2, 32, 4, 4)
    assert model(images).shape == (2, 7)
