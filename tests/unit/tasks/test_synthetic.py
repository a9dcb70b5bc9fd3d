from __future__ import annotations

import time

import pytest
import torch

from dtd.tasks.synthetic import Synthetic


@pytest.mark.parametrize(("parameters", "layers"), [(1_000_000, 4), (10_000, 1), (300_000, 8)])
def test_the_model_is_as_large_as_asked(parameters: int, layers: int) -> None:
    model = Synthetic(parameters=parameters, layers=layers).build_model()
    size = sum(parameter.numel() for parameter in model.parameters())
    assert abs(size - parameters) < 0.02 * parameters


def test_it_can_be_learned() -> None:
    torch.manual_seed(0)
    task = Synthetic(parameters=20_000, rows=64, layers=2)
    model, rows = task.build_model(), task.train_dataset()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batch = rows.fetch(list(range(64)), epoch=0, seed=0)
    first = float(task.loss(model, batch))
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(task.loss(model, batch)) < 0.5 * first
    assert torch.equal(task.train_dataset()[9][0], batch[0][9])


def test_the_extra_time_passes_and_changes_nothing() -> None:
    def gradients(compute_ms: float) -> tuple[float, list[torch.Tensor]]:
        torch.manual_seed(0)
        task = Synthetic(parameters=2_000, rows=8, layers=2, compute_ms=compute_ms)
        model = task.build_model()
        batch = task.train_dataset().fetch([1, 2], epoch=0, seed=0)
        began = time.perf_counter()
        task.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        taken_s = time.perf_counter() - began
        return taken_s, [p.grad for p in model.parameters() if p.grad is not None]

    _, plain = gradients(0.0)
    taken_s, paused = gradients(60.0)
    assert taken_s >= 0.06
    assert len(plain) == 4
    assert all(torch.equal(a, b) for a, b in zip(plain, paused, strict=True))
