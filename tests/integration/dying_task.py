"""A task whose workers die in the phases of a step that a test has chosen, one worker each time.

A file "PHASE-STEP" is a death: whoever is the first in that phase of that step takes the file away
and kills itself.  Steps count from 0; the evaluation and the checkpoint of a state have the
number of steps in it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from gated_task import FEATURES, ROWS, _rows
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtd.tasks.classification import classification_loss, classification_metrics
from dtd.tasks.memory_rows import MemoryRows
from dtd.transport.process_group import ProcessGroupCollective


class Dying:
    """On which side of a plane a random point lies.

    Args:
        deaths: directory of the files.
    """

    def __init__(self, *, deaths: str) -> None:
        self._deaths = Path(deaths)
        self._step = 0
        self._waited = False
        self._watch_the_collective()
        register_optimizer_step_pre_hook(lambda *_: self._may_die("optimizer"))

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 2))
        # The first layer's gradient comes last: others are on their way by then.
        model[0].bias.register_hook(lambda _: self._may_die("backward"))
        return model

    def train_dataset(self) -> MemoryRows:
        return _rows(seed=1, count=ROWS)

    def eval_dataset(self) -> MemoryRows:
        return _rows(seed=2, count=ROWS // 4)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._may_die("forward")
        return classification_loss(model, batch)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        self._may_die("evaluation")
        return classification_metrics(model, batch)

    def on_checkpoint(self, at: Any) -> None:
        self._may_die("checkpoint", at.step)

    def _may_die(self, phase: str, step: int | None = None) -> None:
        try:
            (self._deaths / f"{phase}-{self._step if step is None else step}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def _watch_the_collective(self) -> None:
        group: Any = ProcessGroupCollective
        open_step, wait, gather = group.open_step, group.wait, group.gather

        def opens(this: Any, step: int, buckets: Any) -> None:
            self._step, self._waited = step, False
            open_step(this, step, buckets)

        def waits(this: Any, bucket: int) -> None:
            self._may_die("exchange")
            wait(this, bucket)
            self._waited = True

        def gathers(this: Any, word: bytes) -> list[bytes]:
            if self._waited:
                self._may_die("vote")
            words: list[bytes] = gather(this, word)
            return words

        group.open_step, group.wait, group.gather = opens, waits, gathers
