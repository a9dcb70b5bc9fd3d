"""A simulated worker's data port: neighbours connect their rings, joiners fetch the state.

The counterpart of `dtd.net.data_server`: a ring that comes early waits, a stale one is refused; a
state is served once it is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dtd.sim.network import Port
from dtd.sim.replica import STATE_BYTES, State

RingKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHello:
    """A neighbour connects: generation, roster id and its rank."""

    key: RingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchHello:
    """A joiner asks for the state that a generation starts from."""

    generation: int


class DataPort:
    """What listens under a worker's name."""

    def __init__(self) -> None:
        self._generation = 0
        self._expected: RingKey | None = None
        self._taker: Callable[[Port], None] | None = None
        self._early: dict[RingKey, Port] = {}
        self._offers: dict[int, State] = {}
        self._asking: list[tuple[int, Port]] = []

    def accept(self, port: Port, greeting: object) -> bool:
        """Somebody connects; see `dtd.sim.network.Host`."""
        if isinstance(greeting, FetchHello):
            self._asking.append((greeting.generation, port))
            self._serve()
            return True
        assert isinstance(greeting, RingHello)
        if greeting.key == self._expected and self._taker is not None:
            taker, self._taker = self._taker, None
            taker(port)
            return True
        if greeting.key[0] <= self._generation:
            port.close("stale generation")
            return True
        self._early[greeting.key] = port
        port.receive = _later
        return True

    def expect_ring(self, key: RingKey, taker: Callable[[Port], None]) -> None:
        """Give the neighbour's port to `taker`; refuse those of older generations."""
        self._generation, self._expected, self._taker = key[0], key, taker
        for old in [known for known in self._early if known[0] < key[0]]:
            self._early.pop(old).close("stale generation")
        early = self._early.pop(key, None)
        if early is not None and early.is_open:
            self._taker = None
            taker(early)
            early.resume()

    def offer(self, generation: int, state: State) -> None:
        """Serve the state of a generation until `withdraw`."""
        self._offers[generation] = state
        self._serve()

    def withdraw(self) -> None:
        """Serve nothing, and send away who is waiting."""
        self._offers.clear()
        for _, port in self._asking:
            port.close("not offered any more")
        self._asking.clear()

    def _serve(self) -> None:
        waiting = []
        for generation, port in self._asking:
            if generation in self._offers:
                port.send(self._offers[generation], STATE_BYTES)
            else:
                waiting.append((generation, port))
        self._asking = waiting


def _later(_content: object) -> bool:
    return False
