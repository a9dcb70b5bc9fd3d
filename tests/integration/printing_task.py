"""Tasks that use standard output as the file that it is in a script."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


class Printing:
    def build_model(self) -> nn.Module:
        faulthandler.enable()
        print("arguments", sys.argv)
        print("✓ Verlust, 損失")
        sys.stdout.buffer.write(b"raw \xff\n")
        print("descriptor", sys.stdout.fileno())
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        logging.getLogger("task").info("a logger")
        subprocess.run(["echo", "a child"], check=True, stdout=sys.stdout)
        subprocess.run(["sh", "-c", "echo its error >&2"], check=True)
        ctypes.CDLL(None).printf(b"c\n")
        subprocess.Popen(["sleep", "infinity"])  # holds the pipe, whoever else ends
        return nn.Linear(4, 1)

    def train_dataset(self) -> TensorDataset:
        rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        return TensorDataset(rows, rows.sum(1, keepdim=True))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def on_end(self, at: Any) -> None:
        print("the end", end="")


class Flooding(Printing):
    """A child prints without end; its process id is left in a directory."""

    def __init__(self, *, pids: str) -> None:
        self._pids = Path(pids)

    def build_model(self) -> nn.Module:
        child = subprocess.Popen(["yes", "again"])
        (self._pids / str(child.pid)).write_text(str(os.getpid()))
        return super().build_model()
