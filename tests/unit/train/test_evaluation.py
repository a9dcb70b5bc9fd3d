"""Words of evaluation results."""

from __future__ import annotations

import pytest
import torch

from dtd.engine.sampler import slice_bounds
from dtd.errors import TaskError
from dtd.job import from_mapping
from dtd.train.evaluation import Evaluator, mean_values, unpack_sums


class Counting:
    """Rows are their own numbers."""

    def __init__(self, metrics) -> None:
        self._metrics = metrics

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.tensor(float(row))

    def loss(self, model, batch):
        return batch.mean()

    def metrics(self, model, batch):
        return self._metrics(batch)


def evaluate(task, world_size: int = 1, *, progress=lambda: None, kinds=None, said=None):
    kinds = [] if kinds is None else kinds
    spec = from_mapping(
        {
            "job": {"name": "j", "task": "digits", "global_batch_size": 4, "epochs": 2},
            "train": {"eval_batch_size": 3},
        },
        source="test",
    )
    evaluator = Evaluator(task, task, spec, torch.device("cpu"))
    model = torch.nn.Linear(1, 1)
    words: list[bytes] = []

    def collect(word: bytes) -> list[bytes]:
        words.append(word)
        return said or [word]

    for rank in range(world_size):
        evaluator.evaluate(
            model,
            own=slice_bounds(evaluator.rows, world_size, rank),
            gather=collect,
            progress=progress,
            begins=lambda kind, shape: kinds.append((kind, shape)),
        )
    evaluator.close()
    assert model.training
    return mean_values([unpack_sums(word) for word in words])


@pytest.mark.parametrize("world_size", [1, 3, 12])
def test_every_row_counts_once(world_size) -> None:
    task = Counting(lambda batch: {"half": (batch.sum() / 2, len(batch))})
    assert evaluate(task, world_size) == pytest.approx({"half": 2.25, "loss": 4.5})


@pytest.mark.parametrize("wrong", [3.0, {"a": 3.0}, {"a": (1.0, 2.0, 3.0)}, {4: (1.0, 2.0)}])
def test_malformed_metrics(wrong) -> None:
    with pytest.raises(TaskError, match=r"metrics\(\) of the task returned"):
        evaluate(Counting(lambda batch: wrong))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "x" * 101, "user\u202eexe"])
def test_a_metric_has_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(
        TaskError, match=r"names a metric .* 1 to 100 printable characters"
    ) as error:
        evaluate(Counting(lambda batch: {name: (batch.sum(), 1)}))
    assert error.value.message.isprintable()
