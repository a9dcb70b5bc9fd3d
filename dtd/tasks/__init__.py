"""Built-in tasks and their models, by the name that a job file uses.

Importing this package does not import torch; importing one of its modules does.  Names are
resolved by `dtd.train.task.load_task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dtd.errors import TaskError

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "chargpt": "dtd.tasks.chargpt:CharGpt",
        "cifar10": "dtd.tasks.cifar10:Cifar10",
        "digits": "dtd.tasks.digits:Digits",
        "mnist": "dtd.tasks.digits:Mnist",
        "synthetic": "dtd.tasks.synthetic:Synthetic",
    }
)
"""Name of a built-in task -> "module:attribute"."""


def require_positive(**values: object) -> None:
    """Raise TaskError for the first value that is not a whole number of at least 1."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise TaskError(
                f"[task] {name} must be a whole number of at least 1, not {value!r}",
                remedy=f"change {name} in the job file",
            )


def require_share(**values: object) -> None:
    """Raise TaskError for the first value that is not a number with 0 <= value < 1."""
    for name, value in values.items():
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise TaskError(
                f"[task] {name} must be a number from 0 up to but not including 1, not {value!r}",
                remedy=f"change {name} in the job file",
            )
