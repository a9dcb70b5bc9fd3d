"""Buffers that a training forward changes (BatchNorm's statistics): snapshot, combine, restore.

All persistent buffers count: they are state, and the rest is derived from it.  In a
step every rank changes them by its own rows; what all ranks have afterwards depends on the type:

    float16, bfloat16, float32   the mean of the ranks' values, weighted by their shares of the rows
    float64                      the same, or the value itself where all ranks have one and the same
    integers, bool               the values of one rank, the last one that has rows

The mean is taken in float64, so narrower types come back exactly where ranks agree, one rank alone
keeps every bit of every type, and a value that is not finite makes only its own element so.  A
rank without rows contributes nothing.  All ranks compute the result from the same sums, so all end
with the same bytes.  The values ride in the step's scalars (`dtd.strategy.scalars`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dtd.strategy.wire_memory import tensor_bytes
from dtd.train.data.sampling import mixed
from dtd.train.state.weights import named_state_buffers

_NOTHING: Final = -0.0
"""Adding it changes no value, not even a zero's sign."""


class RunningBuffers:
    """The buffers of one model.

    Args:
        model: its persistent buffers must exist now and keep their shapes.

    Attributes:
        names: of all of them.
        elements: float64 elements that travel: one for each element of a float buffer.
        words: 64-bit integers that travel: one for each element of an integer buffer, two for one
            of a float64 buffer, and how many ranks contribute.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names = [name for name, _ in named_state_buffers(model)]
        self._owners: list[tuple[nn.Module, str]] = []
        for name in self.names:
            path, _, attribute = name.rpartition(".")
            self._owners.append((model.get_submodule(path), attribute))
        live = self._live()
        self._floats = [i for i, buffer in enumerate(live) if buffer.is_floating_point()]
        self._wide = [i for i in self._floats if live[i].dtype == torch.float64]
        self._integers = [i for i, buffer in enumerate(live) if not buffer.is_floating_point()]
        sizes = [buffer.numel() for buffer in live]
        self._float_sizes = [sizes[i] for i in self._floats]
        self._wide_sizes = [sizes[i] for i in self._wide]
        self._integer_sizes = [sizes[i] for i in self._integers]
        self.elements = sum(self._float_sizes)
        self.words = 1 + sum(self._integer_sizes) + 2 * sum(self._wide_sizes)
        self._saved: list[Tensor] = []

    def take_snapshot(self) -> None:
        """Remember the values before a forward."""
        self._saved = [buffer.detach().clone() for buffer in self._live()]

    def restore(self) -> None:
        """Put the snapshot back: nothing of the step happened."""
        with torch.no_grad():
            for (module, name), saved in zip(self._owners, self._saved, strict=True):
                live = module._buffers.get(name)  # noqa: SLF001 - it may be gone, or another one
                if live is None or (live.shape, live.dtype) != (saved.shape, saved.dtype):
                    module._buffers[name] = saved  # noqa: SLF001
                else:
                    live.copy_(saved)

    def put_back(self) -> list[str]:
        """Restore them; returns the names of those that had changed since the snapshot."""
        pairs = zip(self.names, self._live(), self._saved, strict=True)
        changed = [name for name, live, saved in pairs if not _same_bytes(live, saved)]
        self.restore()
        return changed

    def write(self, elements: Tensor, words: Tensor, *, share: float, follows: bool) -> None:
        """This rank's contribution to the sums of `apply`, of its share of the rows.

        The integers of the rank that `follows` count.
        """
        elements.fill_(_NOTHING)
        words.zero_()
        if not share:
            return
        elements.copy_(self._flat(self._floats, torch.float64)).mul_(share)
        words[0] = 1
        integers, bits, marks = self._parts(words)
        wide = self._flat(self._wide, torch.float64).view(torch.int64)
        marks.copy_(_marks(wide))
        if follows:
            integers.copy_(self._flat(self._integers, torch.int64))
            bits.copy_(wide)

    def apply(self, elements: Tensor, words: Tensor) -> None:
        """Set every buffer to the combination of all ranks' contributions."""
        integers, bits, marks = self._parts(words)
        self._write(self._floats, self._float_sizes, elements)
        self._write(self._integers, self._integer_sizes, integers)
        if self._wide:
            agreed = _marks(bits) * words[0] == marks
            means = self._flat(self._wide, torch.float64)
            values = torch.where(agreed, bits.view(torch.float64), means)
            self._write(self._wide, self._wide_sizes, values)

    def _parts(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(integers of one rank, bits of its float64 values, sums of all ranks' marks of those)."""
        wide = sum(self._wide_sizes)
        integers, bits, marks = torch.split(words[1:], [sum(self._integer_sizes), wide, wide])
        return integers, bits, marks

    def _live(self) -> list[Tensor]:
        return [getattr(module, attribute) for module, attribute in self._owners]

    def _flat(self, which: list[int], dtype: torch.dtype) -> Tensor:
        """Values of some buffers in one vector on the CPU, in a type that holds them exactly."""
        if not which:
            return torch.empty(0, dtype=dtype)
        live = self._live()
        return torch.cat([live[i].detach().reshape(-1).to(dtype) for i in which]).cpu()

    def _write(self, which: list[int], sizes: list[int], values: Tensor) -> None:
        live = self._live()
        with torch.no_grad():
            for index, part in zip(which, torch.split(values, sizes), strict=True):
                live[index].copy_(part.view(live[index].shape))


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    return tensor_bytes(one.cpu().contiguous()) == tensor_bytes(other.cpu().contiguous())


def _marks(bits: Tensor) -> Tensor:
    """A hash of each element, so that sums of them tell whether all ranks had the same element.

    The sums are taken modulo 2**64, as everywhere with such integers.
    """
    return torch.from_numpy(mixed(bits.numpy().view(np.uint64).copy()).view(np.int64))


def layers_with_statistics(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers of a model whose statistics change in training."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm)
        and layer.training
        and layer.running_mean is not None
        and layer.momentum != 0.0
    ]


@contextlib.contextmanager
def estimated_anew(model: nn.Module) -> Iterator[None]:
    """Make the statistics those of the training forwards within this context.

    A layer without one keeps what it had.  The counts of batches stay as they were.  If an
    exception leaves the context, the statistics are undefined.
    """
    layers = layers_with_statistics(model)
    before = [[tensor.clone() for tensor in _statistics(layer)] for layer in layers]
    for layer in layers:
        for tensor in _statistics(layer):
            tensor.zero_()
    yield
    for layer, saved in zip(layers, before, strict=True):
        _finish(layer, saved)


def _statistics(layer: _BatchNorm) -> list[Tensor]:
    """Mean, variance and the count of batches."""
    mean, variance, count = layer.running_mean, layer.running_var, layer.num_batches_tracked
    assert mean is not None
    assert variance is not None
    assert count is not None
    return [mean, variance, count]


def _finish(layer: _BatchNorm, saved: list[Tensor]) -> None:
    """Correct the averages of one layer for their begin at zero; restore its count."""
    mean, variance, count = _statistics(layer)
    batches = int(count)
    with torch.no_grad():
        count.copy_(saved[2])
        if not batches:
            mean.copy_(saved[0])
            variance.copy_(saved[1])
        elif layer.momentum is not None:  # None: a plain mean, which needs no correction
            seen = 1.0 - (1.0 - layer.momentum) ** batches
            mean.div_(seen)
            variance.div_(seen)
