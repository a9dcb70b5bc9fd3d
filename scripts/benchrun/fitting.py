"""A job as one would write it without dtd: one process, a loop, a shuffled epoch after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dtd.job import JobSpec, from_mapping
from dtd.train.optimizers import build_optimizer
from dtd.train.schedules import learning_rate
from dtd.train.task import load_task


def fit(spec: dict[str, Any]) -> dict[str, Any]:
    """Train to the end and evaluate.

    Returns:
        {"curve": [[step, seconds, loss]...], "metrics": of the evaluation}
    """
    job = from_mapping(spec, source="benchmark")
    task: Any = load_task(job.job.task, job.task)
    torch.manual_seed(job.job.seed)
    model = task.build_model()
    dataset = task.train_dataset()
    batches = -(-len(dataset) // job.job.global_batch_size)
    steps_total = job.job.steps or batches * (job.job.epochs or 1)
    optimizer = build_optimizer(job.optimizer, list(model.parameters()))
    curve: list[list[float]] = []
    begun_s = time.perf_counter()
    for step, rows in zip(range(steps_total), _batches(job, len(dataset)), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(
                job.schedule, base_lr=job.optimizer.lr, update=step, updates_total=steps_total
            )
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(model, dataset.fetch(rows, epoch=step // batches, seed=job.job.seed))
        loss.backward()
        if job.train.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), job.train.clip_norm)
        optimizer.step()
        curve.append([step + 1, time.perf_counter() - begun_s, float(loss.detach())])
    return {"curve": curve, "metrics": _evaluate(task, model, job.train.eval_batch_size)}


def _batches(job: JobSpec, length: int) -> Iterator[list[int]]:
    """Rows of one step after another; every epoch in another order."""
    order = torch.Generator().manual_seed(job.job.seed)
    size = job.job.global_batch_size
    while True:
        rows = torch.randperm(length, generator=order).tolist()
        yield from (rows[first : first + size] for first in range(0, length, size))


def _evaluate(task: Any, model: nn.Module, size: int) -> dict[str, float]:
    model.eval()
    dataset = task.eval_dataset()
    sums: dict[str, list[float]] = {}
    with torch.no_grad():
        for first in range(0, len(dataset), size):
            rows = range(first, min(first + size, len(dataset)))
            for name, (value, weight) in task.metrics(
                model, dataset.fetch(rows, epoch=0, seed=0)
            ).items():
                total = sums.setdefault(name, [0.0, 0.0])
                total[0] += float(value)
                total[1] += float(weight)
    return {name: value / weight for name, (value, weight) in sums.items()}
