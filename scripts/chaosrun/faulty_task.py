"""The task of chaos runs: another task whose training thread can be made to misbehave.

A command is a file named after a fault and a process, which tells the process what to do at its
next loss.  It is removed before it is carried out, so a worker that starts afresh under the same
process id does not carry it out again.  Nothing of this is in the product: a user's own code may do
all of it by mistake.  The process that gives commands imports this module, and so no torch.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path
from typing import Any, Final

HOLD_GIL: Final = "gil"
GET_STUCK: Final = "stuck"


class FaultyTask:
    """Another task, and faults on command."""

    def __init__(self, *, commands: str, task: str, arguments: dict[str, Any]) -> None:
        # An optimizer's first use imports this, which takes as long as the rest of torch.
        import torch._dynamo  # noqa: F401

        from dtd.train.task import load_task

        self._commands = Path(commands)
        self._task = load_task(task, arguments)

    def __getattr__(self, name: str) -> Any:
        """Return the real task's attribute, which may be missing."""
        return getattr(self._task, name)

    def build_model(self) -> Any:
        return self._task.build_model()

    def train_dataset(self) -> Any:
        return self._task.train_dataset()

    def eval_dataset(self) -> Any:
        """The real task's; else its training rows, so that there is an evaluation to disturb."""
        return getattr(self._task, "eval_dataset", self._task.train_dataset)()

    def loss(self, model: Any, batch: Any) -> Any:
        """The real task's, after the commanded fault."""
        gil_s = self._commanded(HOLD_GIL)
        if gil_s is not None:
            # Called through PyDLL, a C function keeps the interpreter's lock.
            ctypes.PyDLL(None).sleep(round(gil_s))
        if self._commanded(GET_STUCK) is not None:
            threading.Event().wait()
        return self._task.loss(model, batch)

    def _commanded(self, what: str) -> float | None:
        command = self._commands / f"{what}-{os.getpid()}"
        try:
            argument = float(command.read_text())
        except FileNotFoundError:
            return None
        command.unlink()
        return argument
