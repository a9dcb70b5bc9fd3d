"""Plain torch in one rank: alone, beside silent ones, in DDP, or only Gloo's all-reduce.

Also a model and its optimizer divided among ranks, by ZeroRedundancyOptimizer or by FSDP2.  Batches
are made before the clock starts, so reading rows costs nothing.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dtd.exchange.schedule.buckets import plan_buckets
from dtd.host.process_memory import keep_freed_memory
from dtd.job import OptimizerTable, from_mapping
from dtd.strategy.buckets import parameter_shapes
from dtd.train.optim.optimizer import build_optimizer
from dtd.train.task import load_task
from scripts.benchrun.ranks import Bucket, layout
from scripts.benchrun.results import MIB

# --- Gloo's all-reduce ----------------------------------------------------------------------------


TIMEOUT: Final = timedelta(minutes=10)


class GlooSide:
    """Implement `AllReduceSide`.

    Args:
        setup: rank, world, interface, directory.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self._setup = setup

    def listen(self) -> list[Any]:
        """Implement `AllReduceSide`; they find each other by a file."""
        return [self._setup["host"], 0]

    def join(self, addresses: list[list[Any]], secret: str) -> None:
        join_gloo(self._setup)

    def prepare(self, size_bytes: int, dtype: str) -> None:
        elements, kind = layout(size_bytes, dtype)
        self._bucket = Bucket(torch.zeros(elements, dtype=kind))

    def verify(self) -> None:
        self._bucket.verify(self._setup["rank"], self._setup["world"], self.all_reduce)

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self) -> None:
        dist.all_reduce(self._bucket.flat)


def join_gloo(setup: Mapping[str, Any]) -> None:
    """Make the default process group of these ranks."""
    os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"]
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setup['directory']}/store",
        rank=setup["rank"],
        world_size=setup["world"],
        timeout=TIMEOUT,
    )


# --- training steps -------------------------------------------------------------------------------


BATCHES: Final = 4
POWERSGD_RANK: Final = 4
POWERSGD_START: Final = 2
"""The first step that the hook may compress, with what it keeps between steps."""


class TorchSide:
    """A side of plain torch or DDP; `calls` are its functions.

    Args:
        setup: rank, world, interface, directory, and whether it keeps freed memory as dtd does.
    """

    def __init__(self, setup: Mapping[str, Any]) -> None:
        if setup["keeps_memory"]:
            keep_freed_memory()
        torch.set_num_threads(1)
        self._setup = setup
        self._joined = False
        self._by, self._powersgd = "", _powersgd()

    def calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "build": self.build,
            "synchronise": self.synchronise,
            "steps": self.steps,
            "payload_bytes": self.payload_bytes,
            "ready": self.ready,
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
        self._optimizer = build_optimizer(self._spec.optimizer, [*self._plain.parameters()])

    def synchronise(self, by: str, bucket_mib: int) -> None:
        """Synchronise with the other ranks from now on, or in another way than before.

        Args:
            by: "ddp"; "bfloat16" or "powersgd" for DDP with that hook; "zero" for DDP with the
                optimizer's state divided; "fsdp", or "fsdp-keeps" whose parameters stay gathered
                between forward and backward.
            bucket_mib: of DDP's buckets of gradients.
        """
        if not self._joined:
            join_gloo(self._setup)
            self._joined = True
        self._by, table = by, self._spec.optimizer
        # The one before lets go of the parameters only when it is gone.
        self._model = self._plain
        self._plain.zero_grad(set_to_none=True)
        gc.collect()
        if by.startswith("fsdp"):
            _shard_fully(self._plain, keeps=by == "fsdp-keeps")
        else:
            self._model = ddp = DistributedDataParallel(
                self._plain,
                bucket_cap_mb=bucket_mib,
                gradient_as_bucket_view=True,
                static_graph=True,
                forward_sync_buffers=False,
            )
            if by == "bfloat16":
                ddp.register_comm_hook(None, bf16_compress_hook)
            elif by == "powersgd":
                self._powersgd = _powersgd()
                ddp.register_comm_hook(self._powersgd, in_turn())
        parameters = [*self._model.parameters()]
        self._optimizer = (
            _zero(parameters, table) if by == "zero" else build_optimizer(table, parameters)
        )

    def steps(self, count: int) -> list[float]:
        """Seconds of each of some steps."""
        times_s: list[float] = []
        for number in range(count):
            begun_s = time.perf_counter()
            self._forward_backward(number)
            self._optimizer.step()
            times_s.append(time.perf_counter() - begun_s)
        return times_s

    def payload_bytes(self) -> float | None:
        """Return the bytes that DDP gives to all-reduce in a step; None if that is not all."""
        if self._by not in ("ddp", "bfloat16", "powersgd"):
            return None
        elements = sum(parameter.numel() for parameter in self._plain.parameters())
        if self._by == "powersgd":
            elements /= self._powersgd.compression_stats()[0]  # type: ignore[no-untyped-call]
        return elements * (2 if self._by == "bfloat16" else 4)

    def ready(self, count: int) -> dict[str, Any]:
        """The times at which dtd's buckets would be full, from the begin of a step; medians.

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


def in_turn() -> Any:
    """`powerSGD_hook`, which asks for a bucket's all-reduces when those of the one before are done.

    By itself it asks for the second from the thread that has ended the first, so with several
    buckets ranks may ask in different orders, which Gloo does not survive.
    """
    last: list[Any] = [torch.futures.Future()]
    last[0].set_result(None)

    # Not annotated: DDP compares annotations with types, and here they are strings.
    def hook(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        done: Any = torch.futures.Future()

        def begin(_: Any) -> None:
            powerSGD_hook(state, bucket).add_done_callback(
                lambda made: done.set_result(made.value())
            )

        before, last[0] = last[0], done
        before.add_done_callback(begin)
        return done

    return hook


def _powersgd() -> PowerSGDState:
    return PowerSGDState(
        None,
        matrix_approximation_rank=POWERSGD_RANK,
        start_powerSGD_iter=POWERSGD_START,
        use_error_feedback=True,
        warm_start=True,
    )


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _shard_fully(model: nn.Module, *, keeps: bool) -> None:
    """Divide a model's state among the ranks by FSDP2, one child module at a time."""
    children = [child for child in model.children() if any(True for _ in child.parameters())]
    for unit in (*children, model):
        fully_shard(unit, reshard_after_forward=not keeps)
        # Gloo has sums, but no means.
        cast(FSDPModule, unit).set_force_sum_reduction_for_comms(True)


def _zero(parameters: Sequence[nn.Parameter], table: OptimizerTable) -> torch.optim.Optimizer:
    options: dict[str, Any] = {
        "lr": table.lr,
        "betas": (table.beta1, table.beta2),
        "eps": table.eps,
        "weight_decay": table.weight_decay,
        "fused": True,
    }
    return ZeroRedundancyOptimizer(
        parameters,
        optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True,
        **options,
    )
