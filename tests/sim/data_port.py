"""A simulated worker's data port: neighbours connect their rings, joiners fetch the state.

The counterpart of `dtd.net.data_server`: a ring that comes early waits, a stale one is refused, and
so is a lifeline of any ring but ours; a state is served piece by piece once it is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tests.sim.network import Port
from tests.sim.replica import State
from tests.sim.surroundings import Pace

PIECES: Final = 8
PIECE_BYTES: Final = 50_000_000
"""A large state comes in more pieces, so that a slow donor is told from a dead one."""
WELCOME: Final = "welcome"
PAYLOAD: Final = "payload"
PROBE_BYTES: Final = 256 * 1024
RingKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHello:
    """A neighbour connects: generation, roster id and its rank."""

    key: RingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LifelineHello:
    """A neighbour whose ring is up: generation, roster id and its rank; nothing follows."""

    key: RingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchHello:
    """A joiner will ask for pieces of the state that a generation starts from."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeHello:
    """Somebody only wants to know whether frames get through, small and large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a state."""

    index: int
    state: State


@dataclass(frozen=True, slots=True)
class _Asked:
    generation: int
    index: int
    port: Port


class RingAcceptor(Protocol):
    """A generation that waits for its neighbours."""

    def accept_ring(self, port: Port) -> None:
        """The previous neighbour's port."""
        ...

    def accept_lifeline(self, port: Port, rank: int) -> None:
        """The lifeline of whoever has this rank."""
        ...


class DataPort:
    """What listens under a worker's name.

    Args:
        sending: called before each piece of a state is sent; False when the process is gone.
        pace: says how large a state is.
    """

    def __init__(self, sending: Callable[[], bool], *, pace: Pace) -> None:
        self._sending = sending
        self._piece_bytes = int(pace.state_bytes[1]) // pieces_of(pace)
        self._generation = 0
        self._expected: RingKey | None = None
        self._acceptor: RingAcceptor | None = None
        self._taken = False
        self._early: dict[RingKey, Port] = {}
        self._offers: dict[int, State] = {}
        self._asked: list[_Asked] = []
        self._fetching: list[Port] = []

    def accept(self, port: Port, greeting: object) -> bool:
        """Somebody connects; see `tests.sim.network.Host`."""
        if isinstance(greeting, FetchHello):
            self._fetching.append(port)
            port.receive = lambda index: self._on_asked(greeting.generation, index, port)
            return True
        if isinstance(greeting, ProbeHello):
            port.receive = lambda _asked: self._on_probed(port)
            port.send(WELCOME)
            return True
        if isinstance(greeting, LifelineHello):
            self._accept_lifeline(port, greeting.key)
            return True
        assert isinstance(greeting, RingHello)
        if greeting.key == self._expected and self._acceptor is not None and not self._taken:
            self._taken = True
            self._acceptor.accept_ring(port)
            return True
        if greeting.key[0] <= self._generation:
            port.close("stale generation")
            return True
        self._early[greeting.key] = port
        port.receive = _later
        return True

    def _on_probed(self, port: Port) -> bool:
        port.send(PAYLOAD, PROBE_BYTES)
        return True

    def _accept_lifeline(self, port: Port, key: RingKey) -> None:
        """It comes when its ring is up, so the ring is the one that we expect, or over."""
        expected = self._expected
        if self._acceptor is None or expected is None or expected[:2] != key[:2]:
            port.close("stale generation")
        else:
            self._acceptor.accept_lifeline(port, key[2])

    # --- rings -----------------------------------------------------------------------------

    def expect_ring(self, key: RingKey, by: RingAcceptor) -> None:
        """Give the neighbours' ports to `by`; refuse those of older generations."""
        self._generation, self._expected = key[0], key
        self._acceptor, self._taken = by, False
        for old in [known for known in self._early if known[0] < key[0]]:
            self._early.pop(old).close("stale generation")
        early = self._early.pop(key, None)
        if early is not None and early.is_open:
            self._taken = True
            by.accept_ring(early)
            early.resume()

    # --- states ----------------------------------------------------------------------------

    def offer(self, generation: int, state: State) -> None:
        """Serve the state of a generation until `withdraw`."""
        self._offers[generation] = state
        asked, self._asked = self._asked, []
        for one in asked:
            self._on_asked(one.generation, one.index, one.port)

    def withdraw(self) -> None:
        """Serve nothing, and send away who is waiting."""
        self._offers.clear()
        self._asked.clear()
        for port in self._fetching:
            port.close("not offered any more")
        self._fetching.clear()

    def _on_asked(self, generation: int, index: object, port: Port) -> bool:
        assert isinstance(index, int)
        state = self._offers.get(generation)
        if state is None:
            self._asked.append(_Asked(generation, index, port))
        elif self._sending():
            port.send(Piece(index=index, state=state), self._piece_bytes)
        return True


def pieces_of(pace: Pace) -> int:
    """How many pieces a state is fetched in."""
    return max(PIECES, int(pace.state_bytes[1]) // PIECE_BYTES)


def _later(_content: object) -> bool:
    return False
