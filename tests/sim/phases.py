"""The phases of a simulated worker's work, at which faults can strike.

    cluster.crash(rank=3).at(step=7, phase=ALL_GATHER)

A process reports each phase that it reaches; a fault that waits for it strikes immediately, before
any work of the phase is done.  Steps count from 1: step 7 is in progress while six are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """The work that a worker is about to do."""

    REGISTER = "register"
    RECEIVE_STATE = "receive_state"
    SEND_STATE = "send_state"
    TAKE_OVER = "take_over"
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    EXCHANGE = "exchange"
    CONTROL_WORD = "control_word"
    OPTIMIZER = "optimizer"
    COMMITTED = "committed"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    REGROUP = "regroup"


REGISTER: Final = Phase.REGISTER
RECEIVE_STATE: Final = Phase.RECEIVE_STATE
SEND_STATE: Final = Phase.SEND_STATE
TAKE_OVER: Final = Phase.TAKE_OVER
FORWARD: Final = Phase.FORWARD
BACKWARD: Final = Phase.BACKWARD
REDUCE_SCATTER: Final = Phase.REDUCE_SCATTER
ALL_GATHER: Final = Phase.ALL_GATHER
EXCHANGE: Final = Phase.EXCHANGE
CONTROL_WORD: Final = Phase.CONTROL_WORD
OPTIMIZER: Final = Phase.OPTIMIZER
COMMITTED: Final = Phase.COMMITTED
CHECKPOINT: Final = Phase.CHECKPOINT
EVALUATE: Final = Phase.EVALUATE
REGROUP: Final = Phase.REGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A worker at a phase; rank and step are -1 if they do not apply.

    A round of steps reaches a phase as a whole: it covers all steps after `begin`, up to `step`.
    """

    name: str
    phase: Phase
    rank: int = -1
    step: int = -1
    begin: int = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A fault that waits for a worker to reach a phase.

    Attributes:
        phase: the phase.
        name: name of the worker; empty for any.
        rank: rank of the worker; None for any.
        step: the step; None for any.
        strike: called once, with the worker's name.
    """

    phase: Phase
    name: str
    rank: int | None
    step: int | None
    strike: Callable[[str], None]

    def is_for(self, here: Here) -> bool:
        """Whether the worker and phase match."""
        return (
            here.phase is self.phase
            and self.name in ("", here.name)
            and self.rank in (None, here.rank)
            and (self.step is None or here.begin < self.step <= here.step)
        )


class Triggers:
    """All waiting triggers."""

    def __init__(self) -> None:
        self._waiting: list[Trigger] = []

    def lay(self, trigger: Trigger) -> None:
        """Add a trigger."""
        self._waiting.append(trigger)

    def lift(self) -> None:
        """Remove all triggers."""
        self._waiting.clear()

    def reached(self, here: Here) -> None:
        """A worker reaches a phase; the first matching trigger strikes."""
        trigger = next((one for one in self._waiting if one.is_for(here)), None)
        if trigger is not None:
            self._waiting.remove(trigger)
            trigger.strike(here.name)
