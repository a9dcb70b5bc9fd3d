"""Workloads of the training benchmarks, with made-up data, so that nothing has to be at hand.

Workers of the daemons and ranks of plain torch use the same models, rows and losses.  Gates let a
benchmark hold a running job between two blocks of steps: the process that locks a gate's file keeps
every worker in front of it.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dtd.job import parse_job, to_mapping
from dtd.tasks.chargpt import CharGpt, TextWindows, Transformer
from dtd.tasks.cifar10 import ImageRows, ResNet18
from dtd.tasks.classification import classification_loss
from dtd.tasks.synthetic import MadeUpRows, Synthetic

_ROWS: Final = 2048
_CLASSES: Final = 10
_PIXELS: Final = 32
_VOCABULARY: Final = 65


class RandomImages:
    """ResNet-18 for 32x32 images, and images of noise."""

    def __init__(self, *, width: int = 64) -> None:
        self._width = width

    def build_model(self) -> nn.Module:
        return ResNet18(classes=_CLASSES, width=self._width)

    def train_dataset(self) -> ImageRows:
        """Not augmented: reading rows is not measured."""
        draw = np.random.default_rng(0)
        shape = (_ROWS, _PIXELS, _PIXELS, 3)
        return ImageRows(
            images=draw.integers(256, size=shape, dtype=np.uint8),
            labels=draw.integers(_CLASSES, size=_ROWS),
            augment=False,
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return classification_loss(model, batch)


class RandomText:
    """The transformer of the task `chargpt`, and characters of noise."""

    def __init__(
        self, *, layers: int = 6, heads: int = 6, width: int = 384, context: int = 64
    ) -> None:
        self._context = context
        self._shape = {"layers": layers, "heads": heads, "width": width}

    def build_model(self) -> nn.Module:
        """A decoder-only transformer without dropout."""
        return Transformer(
            vocabulary=_VOCABULARY, context=self._context, dropout=0.0, **self._shape
        )

    def train_dataset(self) -> TextWindows:
        generator = torch.Generator().manual_seed(0)
        count = _ROWS * self._context + 1
        tokens = torch.randint(_VOCABULARY, (count,), generator=generator)
        return TextWindows(tokens=tokens, context=self._context)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return CharGpt.loss(self, model, batch)  # type: ignore[arg-type]


class PacedShapes:
    """The parameters of ResNet-18, and compute that only waits; gradients are noise.

    Args:
        compute_ms: a third of it in forward, the rest in backward, spread over the matrices.
        width: of the network's first layers.
    """

    def __init__(self, *, compute_ms: float, width: int = 64) -> None:
        self._compute_s = compute_ms / 1000.0
        self._width = width

    def build_model(self) -> nn.Module:
        """Each parameter in its order, as large as in the network."""
        network = ResNet18(classes=_CLASSES, width=self._width)
        return _PacedShapes([*network.parameters()], self._compute_s)

    def train_dataset(self) -> MadeUpRows:
        """Rows that decide nothing."""
        return MadeUpRows(features=torch.zeros(_ROWS, 1), width=1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Always zero."""
        loss: Tensor = model(batch[0]).mean()
        return loss


class _PacedShapes(nn.Module):
    def __init__(self, parameters: Sequence[Tensor], compute_s: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameters)
        self._pause_s = compute_s / sum(one.dim() > 1 for one in parameters)
        most = max(one.numel() for one in parameters)
        self._noise = torch.randn(most, generator=torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        """Any tensor that is a leaf of none -> the same values."""
        for weight in self.weights:
            x = _Waits.apply(x, weight, self._noise, self._pause_s if weight.dim() > 1 else 0.0)
        return x


class _Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, noise: Tensor, pause_s: float) -> Tensor:
        ctx.shape, ctx.noise, ctx.pause_s = weight.shape, noise, pause_s
        time.sleep(pause_s / 3.0)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.pause_s * 2.0 / 3.0)
        noise = ctx.noise[: ctx.shape.numel()].view(ctx.shape).clone()
        return gradients[0], noise, None, None


class PacedRows:
    """A small model on machines of different speeds: a row takes its time, and no processor.

    Args:
        row_ms: time of a row at speed 1.
        speeds: in each phase, the speed of each rank.
        begins: step of training at which each phase begins.
    """

    def __init__(
        self,
        *,
        row_ms: float,
        speeds: Sequence[Sequence[float]],
        begins: Sequence[int] = (0,),
    ) -> None:
        self._row_s = row_ms / 1000.0
        self._phases = list(zip(begins, speeds, strict=True))
        self._step: int | None = None
        self._rank = 0

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> MadeUpRows:
        """Rows that decide nothing."""
        return MadeUpRows(features=torch.zeros(_ROWS, 1), width=1)

    def on_start(self, at: Any) -> None:
        """Training begins; passes before that take no time."""
        self._rank, self._step = at.rank, at.step

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self._step is not None:
            speeds = [speeds for begin, speeds in self._phases if begin <= self._step][-1]
            time.sleep(len(batch[0]) * self._row_s / speeds[self._rank])
            self._step += 1
        loss: Tensor = model(batch[0]).square().mean()
        return loss


MODELS: Final[Mapping[str, Any]] = {
    "images": RandomImages,
    "text": RandomText,
    "layers": Synthetic,
    "paced": PacedShapes,
    "rows": PacedRows,
}


def _nothing(at: Any) -> None:
    """Most tasks have no use for the beginning."""


class Gated:
    """One of these tasks behind gates.

    Args:
        model: a key of `MODELS`.
        options: its keyword arguments.
        gates: directory of the gates "0", "1", ...
        holds: steps of training that this process has taken before it comes to each gate.
    """

    def __init__(
        self,
        *,
        model: str,
        options: Mapping[str, Any] | None = None,
        gates: str = "",
        holds: Sequence[int] = (),
    ) -> None:
        self._inner = MODELS[model](**(options or {}))
        self._gates = {steps: Path(gates) / str(index) for index, steps in enumerate(holds)}
        self._steps: int | None = None

    def build_model(self) -> nn.Module:
        model: nn.Module = self._inner.build_model()
        return model

    def train_dataset(self) -> Any:
        return self._inner.train_dataset()

    def on_start(self, at: Any) -> None:
        """Passes over a few rows, which come before training, are no steps."""
        self._steps = 0
        getattr(self._inner, "on_start", _nothing)(at)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss, once the gate before this step is open."""
        if self._steps is not None:
            gate = self._gates.get(self._steps)
            self._steps += 1
            if gate is not None:
                with gate.open() as held:
                    fcntl.flock(held, fcntl.LOCK_SH)
        loss: Tensor = self._inner.loss(model, batch)
        return loss


# --- workloads ------------------------------------------------------------------------------------

LOOPBACK: Final = "loopback"
GIGABIT: Final = "1gbit"
SLOW: Final = "100mbit"
LINKS: Final = (LOOPBACK, GIGABIT, SLOW)
"""All on one host, or a host each behind a link of that rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to train.

    Attributes:
        what: for readers.
        model: a key of `MODELS`.
        options: its keyword arguments.
        rows: the global batch.
        block_steps: steps that a side takes in its turn; the first of them does not count.
        links: over which it is measured unless others are asked for.
        worlds: by how many workers, likewise.
        optimizer: its `[optimizer]` table; empty: SGD with momentum.
    """

    what: str
    model: str
    rows: int
    block_steps: int
    options: Mapping[str, Any] = field(default_factory=dict)
    links: Sequence[str] = LINKS
    worlds: Sequence[int] = (1, 2, 4)
    optimizer: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS: Final = {
    "resnet18-16": Workload(
        what="ResNet-18 for 32x32 images, 11.2 M parameters, 16 rows",
        model="images",
        rows=16,
        block_steps=21,
    ),
    "resnet18-64": Workload(
        what="ResNet-18 for 32x32 images, 11.2 M parameters, 64 rows",
        model="images",
        rows=64,
        block_steps=8,
    ),
    "chargpt-16": Workload(
        what="character transformer, 10.7 M parameters, 16 rows of 64 characters",
        model="text",
        rows=16,
        block_steps=21,
    ),
    "mlp-16": Workload(
        what="eight linear layers, 11 M parameters, 16 rows: nearly all communication",
        model="layers",
        rows=16,
        block_steps=41,
        options={"parameters": 11_000_000, "layers": 8, "rows": 2048},
    ),
    "paced-16": Workload(
        what="twenty linear layers, 11 M parameters, that wait 5 ms in forward and 10 ms in"
        " backward each, as for an accelerator",
        model="layers",
        rows=16,
        block_steps=7,
        options={"parameters": 11_000_000, "layers": 20, "rows": 2048, "compute_ms": 300.0},
        links=(GIGABIT,),
        worlds=(2, 4),
    ),
    "paced-small": Workload(
        what="twenty linear layers, 2.2 M parameters, that wait 5 ms in forward and 10 ms in"
        " backward each, as for an accelerator",
        model="layers",
        rows=16,
        block_steps=7,
        options={"parameters": 2_200_000, "layers": 20, "rows": 2048, "compute_ms": 300.0},
        links=(SLOW,),
        worlds=(4,),
    ),
    "paced-resnet18": Workload(
        what="parameters of ResNet-18, 11.2 M, and 16 rows; compute only waits, 100 ms in forward"
        " and 200 ms in backward, as for an accelerator",
        model="paced",
        rows=16,
        block_steps=7,
        options={"compute_ms": 300.0},
        links=(SLOW, GIGABIT),
        worlds=(2, 4),
    ),
}
QUICK: Final = {
    "mlp-quick": Workload(
        what="four linear layers, 0.1 M parameters, 16 rows: to see that it works",
        model="layers",
        rows=16,
        block_steps=4,
        options={"parameters": 100_000, "layers": 4, "rows": 256},
    ),
}

_NEVER: Final = 1_000_000
_PATIENCE_S: Final = 3600


def job_of(
    workload: Workload,
    *,
    steps: int,
    gates: str,
    holds: list[int],
    strategy: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The job that trains it behind gates; nothing but training happens before its end.

    A momentum in the `[strategy]` table takes the place of the optimizer's.
    """
    plain = bool(workload.optimizer) or bool(strategy and "momentum" in strategy)
    momentum = 0.0 if plain else 0.9
    text = f"""
        job.name = "bench"
        job.task = "{__name__}:Gated"
        job.steps = {steps}
        job.global_batch_size = {workload.rows}
        optimizer.lr = 0.001
        optimizer.momentum = {momentum}
        train.eval_every = {_NEVER}
        checkpoint.every_steps = {_NEVER}
        elastic.settle_s = 0.0
        elastic.stall_timeout_s = {_PATIENCE_S}
        task.model = "{workload.model}"
    """
    spec = to_mapping(parse_job(text, source="benchmark"))
    spec["strategy"] |= strategy or {}
    spec["optimizer"] |= workload.optimizer
    spec["task"] |= {"options": dict(workload.options), "gates": gates, "holds": holds}
    return spec
