"""Running buffers: snapshot, change, restore."""

from __future__ import annotations

import torch
from torch import nn

from dtd.train.buffers import RunningBuffers


class Buffered(nn.Module):
    """One buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("constant", torch.tensor([float("-inf"), 1 / 3]))
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("derived", torch.tensor([9.0]), persistent=False)


def exchange(models: list[Buffered], shares: list[float]) -> None:
    buffers = [RunningBuffers(model) for model in models]
    total = torch.zeros(buffers[0].elements, dtype=torch.float64)
    for own in buffers:
        own.take_snapshot()
    for rank, model in enumerate(models):
        if shares[rank]:
            model.mean.add_(float(rank + 1))
            model.count.add_(rank + 1)
        change = torch.empty(buffers[rank].elements, dtype=torch.float64)
        buffers[rank].write_change(change, share=shares[rank], counts=rank == len(models) - 1)
        total += change
    for own in buffers:
        own.apply_change(total)


def test_which_buffers_count() -> None:
    buffers = RunningBuffers(Buffered())
    assert buffers.names == ["mean", "constant", "count"]
    assert buffers.elements == 5


def test_floats_are_averaged_and_integers_follow_the_last_rank() -> None:
    models = [Buffered() for _ in range(3)]
    exchange(models, [0.25, 0.25, 0.5])
    for model in models:
        assert model.mean.tolist() == [3.25, 4.25]
        assert int(model.count) == 8
        assert model.count.dtype == torch.int64
        assert torch.equal(model.constant, Buffered().constant)


def test_a_rank_without_rows_takes_the_others_values() -> None:
    models = [Buffered(), Buffered()]
    exchange(models, [0.0, 1.0])
    assert models[0].mean.tolist() == models[1].mean.tolist() == [3.0, 4.0]
    assert int(models[0].count) == int(models[1].count) == 7


def test_one_rank_keeps_its_bits() -> None:
    model, alone = nn.BatchNorm1d(64), nn.BatchNorm1d(64)
    buffers = RunningBuffers(model)
    change = torch.empty(buffers.elements, dtype=torch.float64)
    for step in range(20):
        rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(step)) * 10**step
        buffers.take_snapshot()
        model(rows)
        buffers.write_change(change, share=1.0, counts=True)
        buffers.apply_change(change)
        alone(rows)
    assert torch.equal(model.running_var, alone.running_var)
    assert torch.equal(model.running_mean, alone.running_mean)
    assert int(model.num_batches_tracked) == 20


def test_restore() -> None:
    model = nn.BatchNorm1d(3)
    buffers = RunningBuffers(model)
    buffers.take_snapshot()
    model(torch.randn(4, 3))
    buffers.restore()
    assert torch.equal(model.running_mean, torch.zeros(3))
    assert int(model.num_batches_tracked) == 0


def test_a_replaced_buffer_is_still_the_modules() -> None:
    model = Buffered()
    buffers = RunningBuffers(model)
    buffers.take_snapshot()
    model.mean = model.mean + 1.0
    buffers.restore()
    assert model.mean.tolist() == [1.0, 2.0]


def test_no_buffers() -> None:
    buffers = RunningBuffers(nn.Linear(2, 2))
    buffers.take_snapshot()
    buffers.restore()
    assert buffers.elements == 0
