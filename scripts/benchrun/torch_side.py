"""Plain torch in one rank: alone, beside others without a word, or in DDP over Gloo.

Its batches are made before the clock starts, so reading rows costs it nothing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from dtd.core.buckets import plan_buckets
from dtd.job import from_mapping
from dtd.train.gradients import parameter_shapes
from dtd.train.heap import keep_freed_memory
from dtd.train.optimizers import build_optimizer
from dtd.train.task import load_task
from scripts.benchrun import fitting
from scripts.benchrun.gloo_side import join_gloo

BATCHES: Final = 4
MIB: Final = 2**20


class TorchSide:
    """See `calls`.

    Args:
        setup: rank, world, interface, directory, and whether it keeps freed memory as dtd does.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        if setup["keeps_memory"]:
            keep_freed_memory()
        torch.set_num_threads(1)
        self._setup = setup
        self._joined = False

    def calls(self) -> dict[str, Callable[..., Any]]:
        """What it can be asked for."""
        return {
            "build": self.build,
            "synchronise": self.synchronise,
            "steps": self.steps,
            "ready": self.ready,
            "fit": fitting.fit,
        }

    def build(self, spec: dict[str, Any]) -> None:
        """Make model, rows and optimizer of a job; nothing is synchronised yet."""
        self._spec = from_mapping(spec, source="benchmark")
        rank, world = self._setup["rank"], self._setup["world"]
        self._task = load_task(self._spec.job.task, self._spec.task)
        torch.manual_seed(self._spec.job.seed)
        self._plain = self._task.build_model().train()
        self._model: nn.Module = self._plain
        dataset: Any = self._task.train_dataset()
        share = self._spec.job.global_batch_size // world
        self._batches = [
            dataset.fetch(range(first, first + share), epoch=0, seed=0)
            for first in (share * (rank + world * batch) for batch in range(BATCHES))
        ]
        self._new_optimizer()

    def synchronise(self, bucket_mib: int, batched: bool, wire_dtype: str) -> None:
        """Wrap the model into DDP, or into another one; `wire_dtype` as in a job's `sync`."""
        if not self._joined:
            join_gloo(self._setup)
            self._joined = True
        # The one before lets go of the parameters only when it is gone.
        self._model = self._plain
        self._plain.zero_grad(set_to_none=True)
        gc.collect()
        self._model = ddp = DistributedDataParallel(
            self._plain,
            bucket_cap_mb=bucket_mib,
            gradient_as_bucket_view=True,
            static_graph=True,
            forward_sync_buffers=False,
            batched_grad_copy=batched,
        )
        if wire_dtype:
            ddp.register_comm_hook(None, bf16_compress_hook)
        self._new_optimizer()

    def steps(self, count: int) -> list[float]:
        """Seconds of each of some steps."""
        times_s: list[float] = []
        for number in range(count):
            begun_s = time.perf_counter()
            self._forward_backward(number)
            self._optimizer.step()
            times_s.append(time.perf_counter() - begun_s)
        return times_s

    def ready(self, count: int) -> dict[str, Any]:
        """When each of dtd's buckets would be full, from the step's begin; medians.

        Returns:
            {"bytes": of each bucket, "ready_s": of each bucket, "optimizer_s"}
        """
        named = list(self._plain.named_parameters())
        plan = plan_buckets(
            parameter_shapes(named),
            bucket_bytes=int(self._spec.sync.bucket_mib * MIB),
            first_bucket_bytes=int(self._spec.sync.first_bucket_mib * MIB),
        )
        seen_s = [0.0] * len(named)

        def note(index: int, _parameter: torch.Tensor) -> None:
            seen_s[index] = time.perf_counter()

        parameters: list[Any] = [parameter for _, parameter in named]
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(note, index))
            for index, parameter in enumerate(parameters)
        ]
        rows: list[list[float]] = []
        for number in range(count):
            begun_s = time.perf_counter()
            self._forward_backward(number)
            backward_s = time.perf_counter()
            self._optimizer.step()
            ended_s = time.perf_counter()
            full_s = [max(seen_s[place.parameter] for place in b.places) for b in plan.buckets]
            rows.append([ended_s - backward_s, *(s - begun_s for s in full_s)])
        for hook in hooks:
            hook.remove()
        optimizer_s, *ready_s = _medians(rows)
        sizes = [bucket.elements * bucket.item_bytes for bucket in plan.buckets]
        return {"bytes": sizes, "ready_s": ready_s, "optimizer_s": optimizer_s}

    def _forward_backward(self, number: int) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        loss: Any = self._task.loss(self._model, self._batches[number % BATCHES])
        loss.backward()

    def _new_optimizer(self) -> None:
        self._optimizer = build_optimizer(self._spec.optimizer, list(self._plain.parameters()))


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]
