"""A task whose workers die in the phases of a step that a test has chosen, one worker each time.

A file "PHASE-STEP" is a death: whoever is the first in that phase of that step takes the file away
and kills itself; of "PHASE-STEP@server" the first parameter server.  Steps count from 0; the
evaluation and the checkpoint of a state have the number of steps in it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from gated_task import FEATURES, ROWS, _rows
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dtd.exchange.collective import RingCollective
from dtd.exchange.process_group import ProcessGroupCollective
from dtd.tasks.classification import MemoryRows, classification_loss, classification_metrics
from dtd.train.state.saver import Checkpoints

WRITTEN_WITHIN_S = 60.0


class Dying:
    """On which side of a plane a random point lies.

    Args:
        deaths: directory of the files.
        transport: of the job; steps are those of its ring, which counts a few more than the job
            where a sharded state is handed on.
        width: of the model; narrow tensors are not compressed.
    """

    def __init__(self, *, deaths: str, transport: str = "gloo", width: int = 32) -> None:
        self._deaths = Path(deaths)
        self._width = width
        self._collective: Any = RingCollective if transport == "ring" else ProcessGroupCollective
        self._step = 0
        self._serves = False
        self._waited = False
        self._watch_the_collective()
        _hear_of_a_checkpoint_in_the_next_step()
        register_optimizer_step_pre_hook(self._on_update)

    def build_model(self) -> nn.Module:
        model = nn.Sequential(
            nn.Linear(FEATURES, self._width), nn.ReLU(), nn.Linear(self._width, 2)
        )
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

    def _on_update(self, *_: Any) -> None:
        self._may_die("optimizer")

    _on_update.elementwise = True  # type: ignore[attr-defined]

    def _may_die(self, phase: str, step: int | None = None) -> None:
        role = "@server" if self._serves else ""
        try:
            (self._deaths / f"{phase}-{self._step if step is None else step}{role}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def _watch_the_collective(self) -> None:
        group = self._collective
        open_step, wait, gather = group.open_step, group.wait, group.gather

        def opens(this: Any, step: int, buckets: Any, *more: int) -> None:
            self._step, self._waited = step, False
            if isinstance(this, RingCollective):
                self._serves = this.assign.roster[this.rank].serves
            open_step(this, step, buckets, *more)

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


def _hear_of_a_checkpoint_in_the_next_step() -> None:
    """However slow the disk is: a job's last step may come before the writer has finished."""
    saver: Any = Checkpoints
    poll = saver.poll

    def polls(this: Any) -> None:
        assert this._idle_within(WRITTEN_WITHIN_S)
        poll(this)

    saver.poll = polls
