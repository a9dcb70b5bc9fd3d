"""Lazy parameters get their shapes from a sample batch, the same on every worker.

One pass of the task's loss over a few rows, in evaluation mode, so that running
buffers stay as they are initialised.  Initial values are drawn from the generator that the job's
seed has set, hence equal everywhere.  A model without lazy parameters is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from dtd.errors import TaskError
from dtd.job import JobSpec
from dtd.train.rows import kept_random_state, load_rows, map_tensors, probed_rows
from dtd.train.task import MapDataset

_ROWS = 4

Sample = Callable[[], Any]
"""Gives a small batch on the model's device."""


def sample_of(dataset: MapDataset, spec: JobSpec, device: torch.device) -> Sample:
    """A few of the rows by which workers compare their data, read when asked for."""

    def sample() -> Any:
        rows = probed_rows(dataset, spec.job.seed)[:_ROWS]
        with kept_random_state():
            batch = load_rows(dataset, rows, epoch=0, seed=spec.job.seed, reseed=True).batch
        return map_tensors(batch, lambda tensor: tensor.to(device))

    return sample


def materialise(model: nn.Module, forward: Callable[[nn.Module], Any]) -> None:
    """Give every lazy parameter and buffer of a model its shape and first value.

    Args:
        model: as the task built it.
        forward: uses all of it.

    Raises:
        TaskError: the pass fails, or leaves some of it lazy.
    """
    if not _lazy(model):
        return
    model.eval()
    try:
        forward(model)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(
            f"parameter {_lazy(model)[0]} is lazy, and a pass over {_ROWS} rows, which would give"
            f" it its shape, raised {type(error).__name__}: {error}",
            remedy="see that loss() works in evaluation mode, or give the layer its sizes",
        ) from error
    model.train()
    left = _lazy(model)
    if left:
        raise TaskError(
            f"parameter {left[0]} is still lazy after a pass of loss() over {_ROWS} rows",
            remedy="remove what loss() does not use, or give the layer its sizes",
        )


def _lazy(model: nn.Module) -> list[str]:
    """Names of what has no shape yet."""
    everything = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, tensor in everything if is_lazy(tensor)]
