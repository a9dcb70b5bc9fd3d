"""Handwritten digits of both kinds, and rows that are held in memory."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from dtd.engine.sampler import position_of_step, steps_per_epoch
from dtd.errors import TaskError
from dtd.tasks.digits import Digits, Mnist
from dtd.train.data.sampling import batch_rows


def test_the_split_is_fixed_and_disjoint() -> None:
    task = Digits()
    train, test = task.train_dataset(), task.eval_dataset()
    assert (len(train), len(test)) == (1438, 359)
    assert torch.equal(task.train_dataset().inputs, train.inputs)
    both = {row.numpy().tobytes() for row in torch.cat([train.inputs, test.inputs])}
    assert len(both) == 1797  # no image is in both parts
    assert test.labels.bincount().min() > 25
    assert test.labels.bincount().max() < 50


def test_sgd_learns_it_to_95_percent() -> None:
    torch.manual_seed(0)
    task = Digits()
    model, train, test = task.build_model(), task.train_dataset(), task.eval_dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    size = {"global_batch_size": 128, "length": len(train)}
    for step in range(10 * steps_per_epoch(len(train), 128)):
        position = position_of_step(step, **size)
        rows = batch_rows(seed=0, position=position, **size)
        optimizer.zero_grad()
        task.loss(model, train.fetch(rows, epoch=position.epoch, seed=0)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = task.metrics(model, test.fetch(range(len(test)), epoch=0, seed=0))
    correct, count = metrics["accuracy"]
    assert count == 359
    assert correct.item() / count >= 0.95
    assert metrics["loss"][0].item() / count < 0.3


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


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    def unreachable(*args: object, **kwargs: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", unreachable)
    with pytest.raises(TaskError, match="could not be downloaded") as caught:
        Mnist(data=str(tmp_path / "new"), download=True).train_dataset()
    assert "network" in caught.value.remedy
