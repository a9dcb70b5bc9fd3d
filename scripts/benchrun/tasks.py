"""What the training benchmarks train: made-up data, so that nothing has to be at hand.

A task of the daemons is imported by its workers, so this file is only about tasks; `train` and
`torch_side` use the same models, rows and losses.  Gates let a benchmark hold a running job between
two blocks of steps: whoever locks the file of a gate keeps every worker in front of it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from dtd.tasks.chargpt import CharGpt, TextWindows
from dtd.tasks.cifar10 import ImageRows
from dtd.tasks.classification import classification_loss
from dtd.tasks.resnet import ResNet18
from dtd.tasks.synthetic import Synthetic
from dtd.tasks.transformer import Transformer

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
        """Not augmented: reading rows is not what is measured."""
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


MODELS: Final[Mapping[str, Any]] = {
    "images": RandomImages,
    "text": RandomText,
    "layers": Synthetic,
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
