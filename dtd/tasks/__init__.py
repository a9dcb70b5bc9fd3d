"""Built-in tasks and their models, by the name that a job file uses.

Importing this package does not import torch; importing one of its modules does.  Names are
resolved by `dtd.train.task.load_task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "chargpt": "dtd.tasks.chargpt:CharGpt",
        "cifar10": "dtd.tasks.cifar10:Cifar10",
        "digits": "dtd.tasks.digits:Digits",
        "mnist": "dtd.tasks.mnist:Mnist",
        "synthetic": "dtd.tasks.synthetic:Synthetic",
    }
)
"""Name of a built-in task -> "module:attribute"."""
