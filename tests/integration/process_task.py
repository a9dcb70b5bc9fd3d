"""Tasks that change their process, print its state, or start processes of their own."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 64
HELPERS = 20
FRUIT = ("apple", "pear", "plum", "fig", "grape", "lemon", "cherry", "melon")
PLANTED = "pickle.py"
"""Every loader process imports this module of the standard library."""


class Line:
    """Fits a line; a base of the others."""

    def build_model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def train_dataset(self) -> Any:
        x = torch.arange(float(ROWS)).view(-1, 1) / ROWS
        return torch.utils.data.TensorDataset(x, x)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


class State(Line):
    """Prints the state of its process.

    Args:
        change: a name of `CHANGES`, applied afterwards; empty: none.
    """

    def __init__(self, change: str = "") -> None:
        print(json.dumps(state(), sort_keys=True))
        if change:
            CHANGES[change]()


def state() -> dict[str, Any]:
    umask = os.umask(0)
    os.umask(umask)
    pid = os.getpid()  # that of the main thread, too
    numbers = {getattr(resource, one) for one in dir(resource) if one.startswith("RLIMIT_")}
    return {
        "environment": dict(os.environ),
        "directory": str(Path.cwd()),
        "umask": umask,
        "limits": [resource.getrlimit(number) for number in sorted(numbers)],
        "affinity": sorted(os.sched_getaffinity(pid)),
        "niceness": os.getpriority(os.PRIO_PROCESS, pid),
        "inheritable": sorted(inheritable()),
    }


def inheritable() -> list[str]:
    """Descriptors beside the standard ones, which are a pipe of each job's own."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if int(entry.name) > 2 and os.get_inheritable(int(entry.name)):
                found.append(str(entry.readlink()))
    return found


def restorable() -> None:
    pid = os.getpid()
    os.environ |= {"MY_RUN": "job-a", "HOME": "/nowhere", "NOTIFY_SOCKET": "/nowhere/notify"}
    del os.environ["PYTHONPATH"]
    os.chdir("/")
    os.umask(0o077)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    os.sched_setaffinity(pid, {min(os.sched_getaffinity(pid))})
    os.set_inheritable(os.open("/etc/passwd", os.O_RDONLY), True)  # noqa: FBT003 - takes no keyword
    signal.setitimer(signal.ITIMER_REAL, 3600)


def lasting() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))


CHANGES = {"restorable": restorable, "lasting": lasting}


class Planting(Line):
    """Leaves a module of the standard library's name in its working directory.

    It ends processes that it has made by fork, the earliest possible, and numbers labels as a set
    of strings orders them, here and in a loader process.
    """

    def __init__(self) -> None:
        Path(PLANTED).write_text("raise SystemExit('imported what a job has written')")

    def train_dataset(self) -> Any:
        fork = multiprocessing.get_context("fork")
        for _ in range(HELPERS):
            helper = fork.Process(target=time.sleep, args=(3600,))
            helper.start()
            helper.terminate()
            helper.join()
            assert helper.exitcode == -signal.SIGTERM, helper.exitcode
        with fork.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        return FruitRows()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        x, order = batch  # of a loader process
        assert torch.equal(order, torch.tensor(FruitRows.order()).expand_as(order)), order
        return model(x).square().mean()


class FruitRows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([row / ROWS]), torch.tensor(self.order())

    @staticmethod
    def order() -> list[int]:
        return [FRUIT.index(name) for name in set(FRUIT)]
