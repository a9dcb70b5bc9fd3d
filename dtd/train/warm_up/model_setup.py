"""Preparation of a model: activation checkpointing, shapes of lazy parameters, precision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from dtd.errors import TaskError
from dtd.job import Precision
from dtd.train.data.loader import Loader
from dtd.train.data.rows import kept_random_state, probed_rows
from dtd.train.task import MapDataset

# --- activation checkpointing: keep a block's input instead of its inner activations -----------
#
# Wrapped are the blocks of a model: the direct children of every `nn.Sequential` and
# `nn.ModuleList` that is the model itself or one of its direct attributes; children without
# parameters (activation functions, dropout) are left as they are.  In training a wrapped block runs
# again during backward, with the same random draws; its running buffers are put back after that, so
# BatchNorm counts every batch once.  Blocks are wrapped while a step is computed, and at no other
# time: between steps a task may script, export, copy or save the model as it has built it.


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The model's blocks.

    Raises:
        TaskError: it has none, or they are inside of compiled code.
    """
    lists = (one for one in model.children() if isinstance(one, nn.Sequential | nn.ModuleList))
    containers = [model, *lists]
    if any(map(_is_compiled, containers)):
        raise TaskError(
            "train.activation_checkpointing cannot wrap the blocks of a model that is compiled",
            remedy="compile each block by itself in build_model() (torch.compile(block)), or turn"
            " one of the two off",
        )
    blocks = {
        id(block): block
        for container in containers
        if isinstance(container, nn.Sequential | nn.ModuleList)
        for block in container.children()
        if any(True for _ in block.parameters())
    }
    if not blocks:
        raise TaskError(
            "train.activation_checkpointing finds no blocks in the model",
            remedy="put its blocks into an nn.Sequential or nn.ModuleList, or turn it off",
        )
    return list(blocks.values())


def _is_compiled(module: nn.Module) -> bool:
    return (
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
    )


class Recomputation:
    """Activation checkpointing of some blocks: a context in which they are wrapped."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = blocks
        self._wrapped: dict[nn.Module, tuple[Any, MethodType]] = {}

    def __enter__(self) -> None:
        for block in self._blocks:
            own, known = vars(block).get("forward"), self._wrapped.get(block)
            if known is None or known[0] is not own:  # a task may replace it
                known = self._wrapped[block] = own, _wrapped_forward(block, own)
            # The same one in every step: compiled code depends on it.
            vars(block)["forward"] = known[1]

    def __exit__(self, *raised: object) -> None:
        for block, (own, wrapped) in self._wrapped.items():
            if vars(block).get("forward") is wrapped:
                del vars(block)["forward"]
                vars(block).update({} if own is None else {"forward": own})


def _wrapped_forward(block: nn.Module, own: Callable[..., Any] | None) -> MethodType:
    """A `forward` that is bound to a block, as a method is, and so moves with its copies."""

    def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = own if own is not None else partial(type(block).forward, block)
        if not (block.training and torch.is_grad_enabled()):
            return run(*args, **kwargs)
        return checkpoint(
            run,
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _BuffersPutBack(block)),
            **kwargs,
        )

    return MethodType(forward, block)


class _BuffersPutBack:
    """Context of a block's recomputation; one with second derivatives enters it again."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._saved: list[list[tuple[Tensor, Tensor]]] = []

    def __enter__(self) -> None:
        buffers = self._block.buffers()
        self._saved.append([(buffer, buffer.detach().clone()) for buffer in buffers])

    def __exit__(self, *raised: object) -> None:
        for buffer, value in self._saved.pop():
            buffer.data.copy_(value)  # .data: backward may hold the buffer


# --- lazy parameters get their shapes from a sample batch, the same on every worker ------------
#
# One pass of the task's loss over a few rows, in evaluation mode, so that running
# buffers stay as they are initialised.  Initial values are drawn from the generator that the job's
# seed has set, hence equal everywhere.  A model without lazy parameters is left alone.


_ROWS = 4

Sample = Callable[[], Any]
"""Gives a small batch on the model's device."""


def samples_of(dataset: MapDataset, seed: int, loader: Loader) -> list[Sample]:
    """Batches of the rows by which workers compare their data, read when asked for.

    Each has rows from all over the dataset, and the same number of them.
    """
    rows = probed_rows(dataset, seed)
    count = max(1, len(rows) // _ROWS)
    return [partial(_batch_of, loader, rows[n::count][:_ROWS]) for n in range(count)]


def one_row_of(dataset: MapDataset, seed: int, loader: Loader) -> Sample:
    """A batch of the first of these rows alone."""
    return partial(_batch_of, loader, probed_rows(dataset, seed)[:1])


def _batch_of(loader: Loader, rows: Sequence[int]) -> Any:
    with kept_random_state():
        return loader.read(rows)


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set every module to evaluation mode, and each back to its own mode afterwards.

    A part that the task has put into `eval()`, such as a frozen BatchNorm, stays in it.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def materialise(model: nn.Module, forward: Callable[[nn.Module], Any]) -> None:
    """Give every lazy parameter and buffer of a model its shape and first value.

    Raises:
        TaskError: the pass fails, or leaves some of it lazy.
    """
    if not _lazy(model):
        return
    try:
        with evaluation_mode(model):
            forward(model)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(
            f"parameter {_lazy(model)[0]} is lazy, and a pass over {_ROWS} rows, which would give"
            f" it its shape, raised {type(error).__name__}: {error}",
            remedy="see that loss() works in evaluation mode, or give the layer its sizes",
        ) from error
    left = _lazy(model)
    if left:
        raise TaskError(
            f"parameter {left[0]} is still lazy after a pass of loss() over {_ROWS} rows",
            remedy="remove what loss() does not use, or give the layer its sizes",
        )


def _lazy(model: nn.Module) -> list[str]:
    """Names of tensors that have no shape yet."""
    everything = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in everything if is_lazy(tensor)]


# --- element type of the forward pass, and loss scaling for float16 ----------------------------
#
# Parameters, gradients and optimizer stay float32; autocast narrows the forward pass.  bfloat16 has
# the range of float32 and needs nothing else.  float16 underflows, so the loss is multiplied by a
# scale which is divided out of the averaged gradients.  The scale changes only by what all ranks
# see alike (were the averaged gradients finite?), so it is the same everywhere and part of the
# state.


_GROWTH = 2.0
_GROWTH_EVERY = 2000
_BACKOFF = 0.5
_LARGEST_SCALE = 2.0**24
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(slots=True)
class LossScaler:
    """Scale of the loss; 1 and constant unless `enabled`."""

    enabled: bool
    scale: float = 1.0
    good_steps: int = 0

    def update(self, *, finite: bool) -> None:
        """Learn from one step: halve after overflow, double after a long time without."""
        if not self.enabled:
            return
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale = max(1.0, self.scale * _BACKOFF)
        elif self.good_steps == _GROWTH_EVERY:
            self.scale, self.good_steps = min(_LARGEST_SCALE, self.scale * _GROWTH), 0


def loss_scaler(precision: Precision) -> LossScaler:
    """The scaler that a job begins with."""
    if precision == "float16":
        return LossScaler(enabled=True, scale=2.0**16)
    return LossScaler(enabled=False)


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a precision that the device lacks."""
    if precision == "float16" and device.type != "cuda":
        raise TaskError(
            f"train.precision float16 needs a CUDA device, and this worker trains on {device}",
            remedy='set train.precision to "bfloat16" or "float32"',
        )


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Context of the forward pass."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])
