"""The fewest rows that a model can train on at once: BatchNorm has no variance of one value.

A row of an image has many values per channel, that of a vector one, and so has an image once it is
pooled.  Only a forward can tell, so one row is tried if a job's slices may have only one; other
jobs do without.  `dtd.train.plan` then gives more rows to fewer ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dtd.train.plan import JobPlan

_ONE_VALUE: Final = "Expected more than 1 value per channel when training"
"""Beginning of what torch raises."""


def smallest_rows(model: nn.Module) -> int:
    """Return the fewest rows as far as classes of layers tell: those of BatchNorm1d are vectors."""
    found = (isinstance(layer, nn.BatchNorm1d) for layer in model.modules() if _estimates(layer))
    return 2 if any(found) else 1


class SingleRow:
    """Finds out, once and only if a plan has single rows, whether the model can train on one.

    Args:
        model: the task's.
        forward: a training forward over one row, after which everything is as before.
    """

    def __init__(self, model: nn.Module, forward: Callable[[], None]) -> None:
        self._forward = forward
        self._unknown = any(map(_estimates, model.modules()))
        self._rows = 1

    def fit(self, plan: JobPlan, world_size: int) -> JobPlan:
        """Return the plan with as many rows in every slice of so many ranks as the model needs.

        Ranks may find out in different generations: where no slice has a single row, slices are
        the same with either number.

        Raises:
            TaskError: a single rank has too few rows.
        """
        avoids_them = plan.smallest_rows > 1  # except where there is only one rank to have rows
        if not plan.has_single_rows(1 if avoids_them else world_size):
            return plan
        if self._unknown:
            self._unknown, self._rows = False, self._tried(plan.smallest_rows)
        fitted = replace(plan, smallest_rows=self._rows)
        fitted.check_slices()
        return fitted

    def _tried(self, otherwise: int) -> int:
        try:
            with _eager():
                self._forward()
        except ValueError as error:
            return 2 if str(error).startswith(_ONE_VALUE) else otherwise
        except Exception:  # noqa: BLE001 - a loss may need several rows for reasons of its own
            return otherwise
        return 1


def _estimates(layer: nn.Module) -> bool:
    """Whether a layer computes the variance of the rows that it is given in training."""
    return isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None)


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Compile nothing for a shape that may never come, and do not load the compiler for it."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
