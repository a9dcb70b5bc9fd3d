"""Activation checkpointing: keep a block's input instead of its inner activations.

Wrapped are the blocks of a model: the direct children of every `nn.Sequential` and `nn.ModuleList`
that is the model itself or one of its direct attributes; children without parameters (activation
functions, dropout) are left as they are.  In training a wrapped block runs again during backward,
with the same random draws; its running buffers are put back after that, so BatchNorm counts every
batch once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtd.errors import TaskError


def wrap_blocks(model: nn.Module) -> int:
    """Wrap the model's blocks in place; returns how many.

    Raises:
        TaskError: the model has no blocks.
    """
    containers = [model, *model.children()]
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
    for block in blocks.values():
        _wrap(block)
    return len(blocks)


def _wrap(block: nn.Module) -> None:
    forward: Callable[..., Any] = block.forward

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(
            forward,
            *args,
            use_reentrant=False,
            context_fn=lambda: (contextlib.nullcontext(), _buffers_put_back(block)),
            **kwargs,
        )

    block.forward = checkpointed


def _buffers_put_back(block: nn.Module) -> AbstractContextManager[None]:
    @contextlib.contextmanager
    def recomputing() -> Iterator[None]:
        saved = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
        try:
            yield
        finally:
            for buffer, value in saved:
                buffer.data.copy_(value)  # .data: backward may hold the buffer

    return recomputing()
