from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dtd.errors import TaskError
from dtd.tasks.mnist import Mnist


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format of the published files: type code, number of dimensions, sizes, bytes."""
    header = struct.pack(">HBB", 0, 0x08, array.ndim)
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + sizes + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist_directory(tmp_path: Path) -> Path:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for part, rows in (("train", 20), ("t10k", 8)):
        write_idx(raw / f"{part}-images-idx3-ubyte", draw.integers(0, 256, (rows, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(rows) % 10)
    return tmp_path


def test_the_published_format_is_read(mnist_directory: Path) -> None:
    task = Mnist(data=str(mnist_directory), hidden=16)
    train, test = task.train_dataset(), task.eval_dataset()
    assert (len(train), len(test)) == (20, 8)
    batch = train.fetch([3, 12, 3], epoch=0, seed=0)
    assert batch[0].shape == (3, 28, 28)
    assert batch[0].dtype == torch.float32
    assert batch[1].tolist() == [3, 2, 3]
    model = task.build_model()
    task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert task.metrics(model, batch)["accuracy"][1] == 3


def test_missing_data_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="MNIST is missing") as caught:
        Mnist(data=str(tmp_path)).train_dataset()
    assert str(tmp_path) in caught.value.message
    assert "download = true" in caught.value.remedy


def test_damaged_data_is_named(mnist_directory: Path) -> None:
    images = mnist_directory / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(TaskError, match="missing or damaged"):
        Mnist(data=str(mnist_directory)).train_dataset()


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", unreachable)
    with pytest.raises(TaskError, match="could not be downloaded") as caught:
        Mnist(data=str(tmp_path / "new"), download=True).train_dataset()
    assert "network" in caught.value.remedy


def test_a_present_archive_is_not_downloaded_again(
    mnist_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchvision.datasets

    monkeypatch.delattr(torchvision.datasets.mnist, "download_and_extract_archive")
    assert len(Mnist(data=str(mnist_directory), download=True).train_dataset()) == 20


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(TaskError, match="pip install torchvision"):
        Mnist().train_dataset()
