"""A simulated worker's data port: neighbours connect for the ring, joiners fetch the state.

The counterpart of `dtd.net.data_port.data_server`: a ring connection that arrives early waits; a
stale one is refused, and so is a lifeline of any ring but the current one.  A state is served in
pieces once it is offered; until then those that have asked are told at intervals that it is being
prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dtd.net.data_port.fetch_server import STILL_WAITING_S
from tests.sim.network import Port
from tests.sim.replica import State
from tests.sim.surroundings import Pace

PIECES: Final = 8
PIECE_BYTES: Final = 50_000_000
"""A larger state has more pieces, so that a slow donor can be told from a dead one."""
WELCOME: Final = "welcome"
PAYLOAD: Final = "payload"
STILL_WAITING: Final = "still waiting"
PROBE_BYTES: Final = 256 * 1024
RingKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHello:
    """Greeting of a ring neighbour: generation, roster id and its rank."""

    key: RingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LifelineHello:
    """Greeting of a lifeline, sent once the ring is up: generation, roster id and rank."""

    key: RingKey


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchHello:
    """Greeting of a joiner that will request pieces of a generation's starting state."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeHello:
    """Greeting of a probe, which tests whether small and large frames get through."""


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
    """The ring of a generation that waits for its neighbours."""

    def accept_ring(self, port: Port, rank: int) -> None:
        """Accept the connection of a rank that sends to this one."""
        ...

    def accept_lifeline(self, port: Port, rank: int) -> None:
        """Accept the lifeline of the neighbour with this rank."""
        ...


class DataPort:
    """The listener under a worker's name.

    Args:
        sending: called before each piece of a state is sent; returns False if the process has
            ended.
        pace: defines the size of a state.
        after: runs an action after a delay, unless the process has died by then.
    """

    def __init__(
        self,
        sending: Callable[[], bool],
        *,
        pace: Pace,
        after: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._sending = sending
        self._after = after
        self._piece_bytes = int(pace.state_bytes[1]) // pieces_of(pace)
        self._generation = 0
        self._ring = (0, 0)
        self._expected: set[RingKey] = set()
        self._acceptor: RingAcceptor | None = None
        self._early: dict[RingKey, Port] = {}
        self._offers: dict[int, State] = {}
        self._asked: list[_Asked] = []
        self._fetching: list[Port] = []

    def accept(self, port: Port, greeting: object) -> bool:
        """Accept a connection; see `tests.sim.network.Host`."""
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
        if greeting.key in self._expected and self._acceptor is not None:
            self._expected.remove(greeting.key)
            self._acceptor.accept_ring(port, greeting.key[2])
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
        """A lifeline arrives once its ring is up, so that ring is the expected one, or is over."""
        if self._acceptor is None or self._ring != key[:2]:
            port.close("stale generation")
        else:
            self._acceptor.accept_lifeline(port, key[2])

    # --- rings -----------------------------------------------------------------------------

    def expect_ring(
        self, generation: int, roster_id: int, ranks: set[int], by: RingAcceptor
    ) -> None:
        """Pass the connections of these ranks to `by`; refuse those of older generations."""
        self._generation, self._ring, self._acceptor = generation, (generation, roster_id), by
        self._expected = {(generation, roster_id, rank) for rank in ranks}
        for old in [known for known in self._early if known[0] < generation]:
            self._early.pop(old).close("stale generation")
        for key in sorted(self._expected & self._early.keys()):
            early = self._early.pop(key)
            if early.is_open:
                self._expected.remove(key)
                by.accept_ring(early, key[2])
                early.resume()

    # --- states ----------------------------------------------------------------------------

    def offer(self, generation: int, state: State) -> None:
        """Serve the state of a generation until `withdraw`."""
        self._offers[generation] = state
        asked, self._asked = self._asked, []
        for one in asked:
            self._on_asked(one.generation, one.index, one.port)

    def withdraw(self) -> None:
        """Stop serving, and close waiting connections."""
        self._offers.clear()
        self._asked.clear()
        for port in self._fetching:
            port.close("no longer offered")
        self._fetching.clear()

    def _on_asked(self, generation: int, index: object, port: Port) -> bool:
        assert isinstance(index, int)
        state = self._offers.get(generation)
        if state is None:
            asked = _Asked(generation, index, port)
            self._asked.append(asked)
            self._after(STILL_WAITING_S, lambda: self._still_waits(asked))
        elif self._sending():
            port.send(Piece(index=index, state=state), self._piece_bytes)
        return True

    def _still_waits(self, asked: _Asked) -> None:
        if asked in self._asked and asked.port.is_open:
            asked.port.send(STILL_WAITING)
            self._after(STILL_WAITING_S, lambda: self._still_waits(asked))


def pieces_of(pace: Pace) -> int:
    """Number of pieces in which a state is fetched."""
    return max(PIECES, int(pace.state_bytes[1]) // PIECE_BYTES)


def _later(_content: object) -> bool:
    return False
