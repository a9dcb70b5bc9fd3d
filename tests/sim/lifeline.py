"""A simulated process's lifeline: connections to its neighbours that end first when it is killed.

The counterpart of `dtd.net.lifeline`, and of what the kernel does to a process that is killed: its
threads end, then its memory is freed, and only then its sockets are closed, unless a thread held
them alone (docs/adr/0007).  Now and then that thread ends last, and now and then there is none.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tests.sim.data_port import LifelineHello
from tests.sim.network import Network, Port

NO_LIFELINE: Final = 0.1
"""Share of processes whose kernel knows no descriptors of a thread's own."""

THREAD_ENDS_LAST: Final = 0.125
"""Share of deaths in which a lifeline gains nothing."""

THREAD_ENDS_S: Final = (0.0001, 0.004)
MEMORY_IS_FREE_S: Final = (0.03, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How long after its end a process's lifelines are closed, and all its other streams."""

    lifelines_s: float
    streams_s: float


class Lifeline:
    """What one process holds.  One for the life of the process.

    Args:
        network: connects.
        name: the process.
        rng: chance of its own, so that a plan in which nobody dies goes as if there were none.
    """

    def __init__(self, network: Network, name: str, rng: random.Random) -> None:
        self._network = network
        self._name = name
        self._rng = rng
        self._works = rng.random() >= NO_LIFELINE
        self._held: list[Port] = []

    def hold(self, targets: Collection[str], hello: LifelineHello) -> None:
        """Connect to `targets`; what was held before is let go."""
        for port in self._held:
            port.close("let go")
        self._held = [self._connect(target, hello) for target in sorted(targets) if self._works]

    def death(self) -> Death:
        """How a process that dies now is noticed."""
        streams_s = self._rng.uniform(*MEMORY_IS_FREE_S)
        lifelines_s = self._rng.uniform(*THREAD_ENDS_S)
        if self._rng.random() < THREAD_ENDS_LAST:
            lifelines_s = streams_s
        return Death(lifelines_s=lifelines_s, streams_s=streams_s)

    def _connect(self, target: str, hello: LifelineHello) -> Port:
        return self._network.connect(
            self._name, target, hello, receive=_hears_nothing, closed=_ignores, lifeline=True
        )


def _hears_nothing(_content: object) -> bool:
    return True


def _ignores(_reason: str) -> None:
    return None
