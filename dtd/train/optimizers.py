"""The optimizer that a job asks for, or the task's own.

torch's optimizers with `foreach`: a handful of kernels over all parameters, element by element the
same arithmetic.  Learning rates are set before every update from the schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dtd.errors import TaskError
from dtd.job import OptimizerTable


def build_optimizer(
    table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer of the job's [optimizer] table."""
    params = list(parameters)
    if table.name == "sgd":
        return torch.optim.SGD(
            params,
            lr=table.lr,
            momentum=table.momentum,
            nesterov=table.nesterov,
            weight_decay=table.weight_decay,
            foreach=True,
        )
    kind = torch.optim.Adam if table.name == "adam" else torch.optim.AdamW
    return kind(
        params,
        lr=table.lr,
        betas=(table.beta1, table.beta2),
        eps=table.eps,
        weight_decay=table.weight_decay,
        foreach=True,
    )


def optimizer_of(
    task: Any, table: OptimizerTable, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """The task's own optimizer if it builds one, else the job's.

    Raises:
        TaskError: the task's is no torch optimizer.
    """
    build = getattr(task, "build_optimizer", None)
    if build is None:
        return build_optimizer(table, parameters)
    optimizer = build(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"build_optimizer() of the task returned a {type(optimizer).__name__}",
            remedy="return a torch.optim.Optimizer",
        )
    return optimizer
