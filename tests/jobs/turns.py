"""Ranks of one process that take turns: one computes at a time, with random numbers of its own.

The generators of torch, numpy and `random` belong to the process.  A rank that waits for the
others hands its turn on and, when it gets it back, finds the generators as it left them; so ranks
that draw in their losses do what ranks in processes of their own would do.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from dtd.exchange.in_process import InProcessRing

T = TypeVar("T")


class Turns:
    """Held by the thread that computes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def ring(self, *arguments: Any, **options: Any) -> InProcessRing:
        """A ring whose ranks take these turns."""
        return InProcessRing(*arguments, changed=_TurnCondition(self), **options)


class _TurnCondition(threading.Condition):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait without the turn; called with the lock and the turn held."""
        if found := predicate():
            return found
        state = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        self._turns.__exit__()
        try:
            return super().wait_for(predicate, timeout)
        finally:
            self.release()  # whoever has the turn may need it
            self._turns.__enter__()
            self.acquire()
            torch.default_generator.set_state(state[0])
            np.random.set_state(state[1])
            random.setstate(state[2])
