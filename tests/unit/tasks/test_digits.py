"""Digits, and rows that are held in memory."""

from __future__ import annotations

import sys

import pytest
import torch

from dtd.engine.sampler import position_of_step, steps_per_epoch
from dtd.errors import TaskError
from dtd.tasks.classification import MemoryRows
from dtd.tasks.digits import Digits
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


def test_rows_are_those_that_scikit_learn_gives() -> None:
    from sklearn.datasets import load_digits  # late: collecting tests need not wait for it

    images, labels = load_digits(return_X_y=True)
    rows = torch.cat([Digits().train_dataset().inputs, Digits().eval_dataset().inputs])
    assert sorted((rows * 3 + 5).round().int().tolist()) == sorted(images.astype(int).tolist())
    mine = torch.cat([Digits().train_dataset().labels, Digits().eval_dataset().labels])
    assert mine.bincount().tolist() == torch.from_numpy(labels).bincount().tolist()


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


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(TaskError, match="pip install scikit-learn"):
        Digits().train_dataset()


@pytest.mark.parametrize("hidden", [0, -3, 2.5, "64", True])
def test_an_impossible_width_is_refused(hidden: object) -> None:
    with pytest.raises(TaskError, match=r"\[task\] hidden must be a whole number"):
        Digits(hidden=hidden)  # type: ignore[arg-type]


def test_fetching_is_what_collating_the_rows_gives() -> None:
    rows = MemoryRows(
        inputs=torch.arange(12, dtype=torch.uint8).view(6, 2),
        labels=torch.arange(6),
        prepare=lambda stored: stored.float() / 2,
    )
    inputs, labels = rows.fetch([4, 0, 4], epoch=3, seed=9)
    assert inputs.tolist() == [[4.0, 4.5], [0.0, 0.5], [4.0, 4.5]]
    assert labels.tolist() == [4, 0, 4]
    assert torch.equal(rows[4][0], inputs[0])
    assert len(rows) == 6
