"""Which of a peer's addresses is tried when, and the one that has answered before.

A worker may have several addresses: of other networks, of VPNs, of bridges that exist on every host
alike.  The one that calls tries them in their order, as RFC 8305 ("Happy Eyeballs") does: the next
one when one has failed or has not answered for a moment, and takes the first at which the peer that
is meant completes the handshake.  A host that answers without the keys, or under another name, is
an attempt that failed.

`Attempts` is pure: times in, indices out.  Its shells are `Dialling` (`dtd.exchange.dialling`) on
the event loop and `first_link` here in threads.
"""

from __future__ import annotations

import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dtd.address import Address
from dtd.errors import DtdError
from dtd.net.blocking_link import BlockingLink, Connect

CONNECT_S: Final = 0.25
"""Time that an address has for the TCP connection (RFC 8305, "Connection Attempt Delay")."""

ANSWER_S: Final = 2.0
"""Time for the handshake on it: a worker that does not know the generation yet answers late."""


class Attempts:
    """The attempts to connect to one peer, one at each address, in the order of addresses.

    Args:
        count: number of addresses.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._head_starts: dict[int, float] = {}

    def start(self, now: float) -> int | None:
        """Return the index of the address to try now, if it is time for another one."""
        if now < self.next_s():
            return None
        index, self._started = self._started, self._started + 1
        self._head_starts[index] = now + CONNECT_S
        return index

    def next_s(self) -> float:
        """The time of the next attempt if none fails before; infinite if none is left."""
        if self._started == self._count:
            return math.inf
        return max(self._head_starts.values(), default=-math.inf)

    def connected(self, index: int, now: float) -> None:
        """The TCP connection of an attempt is open."""
        if index in self._head_starts:
            self._head_starts[index] = now + ANSWER_S

    def failed(self, index: int) -> None:
        """An attempt has failed."""
        self._head_starts.pop(index, None)

    @property
    def over(self) -> bool:
        """Whether all attempts have failed."""
        return self._started == self._count and not self._head_starts


# --- the addresses of a peer ----------------------------------------------------------------------


class DataPort(Protocol):
    """What messages say of a worker's data port."""

    @property
    def host(self) -> str:
        """The host of its first address."""
        ...

    @property
    def port(self) -> int:
        """The port of all addresses."""
        ...

    @property
    def others(self) -> tuple[str, ...]:
        """The hosts of further addresses, best first."""
        ...


class NamedPort(DataPort, Protocol):
    """The data port of a worker whose name is known."""

    @property
    def name(self) -> str:
        """The worker's name."""
        ...


def addresses(one: DataPort) -> tuple[Address, ...]:
    """Return the addresses of a data port, best first."""
    return tuple(Address(host, one.port) for host in (one.host, *one.others))


class Routes:
    """The address at which each worker answered last; it is tried first.  From any thread."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}

    def addresses(self, one: NamedPort) -> tuple[Address, ...]:
        """Return the addresses of a worker, best first."""
        known = self._hosts.get(one.name)
        return tuple(sorted(addresses(one), key=lambda address: address.host != known))

    def answered(self, one: NamedPort, address: Address) -> None:
        """The worker has completed a handshake at this address."""
        self._hosts[one.name] = address.host


# --- blocking links -------------------------------------------------------------------------------

OpenAt = Callable[[Address, Connect], BlockingLink]
"""Opens a link at an address, over connections that the given function makes."""

_Outcome = tuple[int, BlockingLink | OSError | DtdError | None]


def first_link(
    to: Sequence[Address], open_at: OpenAt, connect: Connect
) -> tuple[BlockingLink, Address]:
    """Open a link at the first address that answers; blocking, each attempt in its own thread.

    Args:
        to: the peer's addresses, best first.
        open_at: completes the handshake.
        connect: makes the connections.

    Returns:
        the link, and its address.

    Raises:
        OSError, DtdError: as `open_at` at the first address; no other one has answered either.
    """
    if len(to) == 1:
        return open_at(to[0], connect), to[0]
    race = _Race(to, open_at, connect)
    try:
        return race.run()
    finally:
        race.end()


class _Race:
    """The threads of one `first_link`."""

    def __init__(self, to: Sequence[Address], open_at: OpenAt, connect: Connect) -> None:
        self._to, self._open_at, self._connect = to, open_at, connect
        self._attempts = Attempts(len(to))
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> tuple[BlockingLink, Address]:
        failures: dict[int, OSError | DtdError] = {}
        while not self._attempts.over:
            while (index := self._attempts.start(time.monotonic())) is not None:
                name = f"call-{self._to[index]}"
                threading.Thread(target=self._try, args=(index,), name=name, daemon=True).start()
            index, outcome = self._next_outcome()
            if isinstance(outcome, BlockingLink):
                return outcome, self._to[index]
            if outcome is not None:
                self._attempts.failed(index)
                failures[index] = outcome
            elif index >= 0:
                self._attempts.connected(index, time.monotonic())
        raise failures[0]

    def _next_outcome(self) -> _Outcome:
        """Return the next news of an attempt; (-1, None) when it is time for another attempt."""
        wait_s = self._attempts.next_s() - time.monotonic()
        try:
            return self._outcomes.get(timeout=None if math.isinf(wait_s) else max(0.0, wait_s))
        except queue.Empty:
            return -1, None

    def end(self) -> None:
        """Close links that open from now on."""
        with self._lock:
            self._ended = True
        while not self._outcomes.empty():
            _close(self._outcomes.get()[1])

    def _try(self, index: int) -> None:
        def connect(address: Address, timeout_s: float) -> socket.socket:
            made = self._connect(address, timeout_s)
            self._outcomes.put((index, None))
            return made

        outcome: BlockingLink | OSError | DtdError
        try:
            outcome = self._open_at(self._to[index], connect)
        except (OSError, DtdError) as error:
            outcome = error
        with self._lock:
            if not self._ended:
                self._outcomes.put((index, outcome))
                return
        _close(outcome)


def _close(outcome: object) -> None:
    if isinstance(outcome, BlockingLink):
        outcome.close()
