"""Tasks of the training benchmarks, with made-up data, so that nothing has to be at hand.

A task of the daemons is imported by its workers, so this file is only about tasks; `train` and
`torch_side` use the same models, rows and losses.  Gates let a benchmark hold a running job between
two blocks of steps: the process that locks a gate's file keeps every worker in front of it.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

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
        """The network of the task `cifar10`."""
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
        """Mean cross-entropy."""
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
        """Windows of noise."""
        generator = torch.Generator().manual_seed(0)
        count = _ROWS * self._context + 1
        tokens = torch.randint(_VOCABULARY, (count,), generator=generator)
        return TextWindows(tokens=tokens, context=self._context)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy of the next character."""
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


MODELS: Final[Mapping[str, Any]] = {
    "images": RandomImages,
    "text": RandomText,
    "layers": Synthetic,
    "paced": PacedShapes,
}


class Gated:
    """One of these tasks behind gates.

    Args:
        model: a key of `MODELS`.
        options: its keyword arguments.
        gates: directory of the gates "0", "1", ...
        holds: steps that this process has taken before it comes to each gate.
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
        self._steps = 0

    def build_model(self) -> nn.Module:
        """The model."""
        model: nn.Module = self._inner.build_model()
        return model

    def train_dataset(self) -> Any:
        """The rows."""
        return self._inner.train_dataset()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss, once the gate before this step is open."""
        gate = self._gates.get(self._steps)
        self._steps += 1
        if gate is not None:
            with gate.open() as held:
                fcntl.flock(held, fcntl.LOCK_SH)
        loss: Tensor = self._inner.loss(model, batch)
        return loss
