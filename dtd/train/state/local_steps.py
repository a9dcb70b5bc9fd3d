"""Undo of what local steps change on one rank besides its weights.

With local steps (`dtd.strategy.local_sgd`) the optimizer's state belongs to one rank.  It advances
when a round is committed.  When the round is redone or skipped, it is restored to what it was
before, so that the round produces the same bytes again.  The task's schedule advances with every
local step, too.
"""

from __future__ import annotations

from torch import Tensor

from dtd.strategy.nested import copied
from dtd.strategy.replicated import OptimizerSnapshot
from dtd.train.state.replica import Replica


class LocalStepsUndo:
    """A copy of the optimizer's and the schedule's state before a round.

    Args:
        replica: the replica that takes the local steps.
    """

    def __init__(self, replica: Replica) -> None:
        self._schedule = replica.schedule
        self._tensors: dict[str, Tensor] = {}
        if replica.schedule is not None:
            self._schedule_state = replica.schedule.state(self._tensors)
            self._tensors = copied(self._tensors)
        self._optimizer = OptimizerSnapshot(replica.optimizer)

    def restore(self) -> None:
        """Restore the copy; to be called once."""
        if self._schedule is not None:
            self._schedule.load(self._schedule_state, self._tensors)
        self._optimizer.restore()
