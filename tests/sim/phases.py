"""Where a simulated worker is in its work, so that a fault can strike it exactly there.

    cluster.crash(rank=3).at(step=7, phase=ALL_GATHER)

A process says that it reaches a phase; whoever waits for that moment strikes at once, before
anything of the phase is done.  Steps count from 1: step 7 is under way while six are committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """What a worker is about to do."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """A worker at a phase; rank and step are -1 where they mean nothing."""

    name: str
    phase: Phase
    rank: int = -1
    step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambush:
    """Something that waits for a worker at a phase.

    Attributes:
        phase: where.
        name: for which worker; empty for any.
        rank: for which rank; None for any.
        step: in which step; None for any.
        strike: called once, with the worker's name.
    """

    phase: Phase
    name: str
    rank: int | None
    step: int | None
    strike: Callable[[str], None]

    def is_for(self, here: Here) -> bool:
        """This is the moment."""
        return (
            here.phase is self.phase
            and self.name in ("", here.name)
            and self.rank in (None, here.rank)
            and self.step in (None, here.step)
        )


class Ambushes:
    """All that wait."""

    def __init__(self) -> None:
        self._waiting: list[Ambush] = []

    def lay(self, ambush: Ambush) -> None:
        """Let it wait."""
        self._waiting.append(ambush)

    def lift(self) -> None:
        """Nothing waits any more."""
        self._waiting.clear()

    def reached(self, here: Here) -> None:
        """A worker comes along; the first that waits for it here strikes."""
        ambush = next((one for one in self._waiting if one.is_for(here)), None)
        if ambush is not None:
            self._waiting.remove(ambush)
            ambush.strike(here.name)
