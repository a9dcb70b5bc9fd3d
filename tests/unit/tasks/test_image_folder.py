from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dtd.errors import TaskError
from dtd.tasks.cifar10 import Cifar10, class_names, load_image_folder


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
