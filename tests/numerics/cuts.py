"""Ranks that train, and rings that break where a test wants them to."""

from __future__ import annotations

from dtd.core.engine.step_protocol import FRESH
from dtd.errors import RingBroken


class Cut:
    """A collective that raises in a call of one method in one step.

    Args:
        inner: the collective.
        step: in which one.
        method: whose call.
        call: how many calls of it are let through before.
    """

    def __init__(self, inner, step: int, *, method: str = "wait", call: int = 0) -> None:
        self._inner, self._method, self._step, self._left = inner, method, step, call

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name != self._method or self._inner.node.core.step != self._step:
            return value
        self._left -= 1
        if self._left >= 0:
            return value

        def cut(*arguments):
            raise RingBroken("cut by the test")

        return cut


def ranks_of(arena, task, spec, count, name="w"):
    """So many ranks that hold the first state."""
    ranks = [arena.start(task, spec, name=f"{name}{index}") for index in range(count)]
    for rank in ranks:
        rank.run.adopt_local(*FRESH)
    return ranks
