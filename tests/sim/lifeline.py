"""A simulated process's lifeline: connections to its neighbours that end first when it is killed.

The counterpart of `dtd.net.liveness`, and of the kernel's actions when a process is killed: its
threads end, its memory is freed, and only then are its sockets closed, except those that only one
thread held (docs/adr/0007).  In some simulated deaths that thread ends last, and some processes
have no such thread.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tests.sim.data_port import LifelineHello
from tests.sim.network import Network, Port

NO_LIFELINE: Final = 0.1
"""Share of processes whose kernel does not support file descriptors private to a thread."""

THREAD_ENDS_LAST: Final = 0.125
"""Share of deaths in which a lifeline gains nothing."""

THREAD_ENDS_S: Final = (0.0001, 0.004)
MEMORY_IS_FREE_S: Final = (0.03, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Delays after a process's end until its lifelines, and all its other streams, are closed."""

    lifelines_s: float
    streams_s: float


class Lifeline:
    """The lifelines of one process; one object for the life of the process.

    Args:
        network: the network on which to connect.
        name: name of the process.
        rng: a separate random generator, so that lifelines do not affect plans without deaths.
    """

    def __init__(self, network: Network, name: str, rng: random.Random) -> None:
        self._network = network
        self._name = name
        self._rng = rng
        self._works = rng.random() >= NO_LIFELINE
        self._held: list[Port] = []

    def hold(self, targets: Collection[str], hello: LifelineHello) -> None:
        """Connect to `targets`, and close the previous lifelines."""
        for port in self._held:
            port.close("let go")
        self._held = [self._connect(target, hello) for target in sorted(targets) if self._works]

    def death(self) -> Death:
        """The delays with which peers notice the death of the process, if it dies now."""
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
