"""Limits: rates, and connections that have not authenticated.

Pure: clock values in, decisions out (protocol.md, "Security" and "Limits").
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

# ---
# The token bucket behind every bounded rate: an amount per second, and a burst.
#
# Pure: the clock is an argument.  The owner of an allowance decides what it is for, and what
# happens to the excess.


@dataclass(slots=True)
class Allowance:
    """A token bucket: the amount that a caller may still do or send.

    Attributes:
        rate_per_s: amount added per second.
        burst: largest saved amount, available at the start.
    """

    rate_per_s: float
    burst: float
    _left: float = -1.0
    _filled_s: float | None = None

    def left(self, now: float) -> float:
        """The amount available now; below 0 while a debt is being repaid."""
        if self._filled_s is None:
            self._left = self.burst
        else:
            earned = max(0.0, now - self._filled_s) * self.rate_per_s
            self._left = min(self.burst, self._left + earned)
        self._filled_s = now
        return self._left

    def takes(self, amount: float, now: float) -> bool:
        """Take this amount if it is available; returns whether it was."""
        if self.left(now) < amount:
            return False
        self._left -= amount
        return True

    def spend(self, amount: float, now: float) -> None:
        """Take this amount in any case; a shortfall becomes a debt."""
        self.left(now)
        self._left -= amount

    def wait_s(self, now: float) -> float:
        """The time until the debt is repaid; 0 without debt."""
        return max(0.0, -self.left(now) / self.rate_per_s)


# --- pacing: rates of many callers, each of which waits for its own -----------------------------
#
# Nothing is refused or lost: a caller that exceeds its rate is served later.
# Pure: the clock is an argument, and the wait is returned.


MAX_PACED: Final = 4096
"""The least recent caller is forgotten: by then it has nothing to wait for."""


@dataclass(slots=True, kw_only=True)
class Pacing:
    """The same rate for each of many callers."""

    rate_per_s: float
    burst: float
    _paced: OrderedDict[Hashable, Allowance] = field(default_factory=OrderedDict)

    def wait_s(self, who: Hashable, now: float, amount: float = 1.0) -> float:
        """Return the seconds to wait before asking again; 0: continue, `amount` has been taken."""
        allowance = self._paced.pop(who, None) or Allowance(self.rate_per_s, self.burst)
        self._paced[who] = allowance
        while len(self._paced) > MAX_PACED:
            self._paced.popitem(last=False)
        wait_s = allowance.wait_s(now)
        if not wait_s:
            allowance.spend(amount, now)
        return wait_s


PER_ADDRESS: Final = 16
IN_ALL: Final = 128
RATE_PER_S: Final = 20.0
BURST: Final = 64.0
AUTHENTICATE_WITHIN_S: Final = 5.0
MAX_ADDRESSES: Final = 4096
MAX_KNOWN: Final = 1024
"""Most addresses that are remembered as authenticated; the oldest are forgotten."""

STRANGERS_PER_S: Final = 100.0
STRANGERS_BURST: Final = 256.0
"""The rate of all other addresses together: each connection costs this side a handshake."""

IPV6_PREFIX_BITS: Final = 64


@dataclass(slots=True)
class _Caller:
    origin: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on a new connection.

    Attributes:
        refusal: why it is closed at once; empty when it is admitted.
        dropped: keys of older connections that are closed in its favour.
    """

    refusal: str = ""
    dropped: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class ConnectionLimiter:
    """The bounds of one listener.

    Connections are known by keys that the listener chooses.

    Attributes:
        per_address: most unauthenticated connections of one address.
        in_all: most unauthenticated connections of all addresses.
        only_failures: the rate of an address counts connections that ended unauthenticated, not
            all, and callers on this host have no rate: a loopback address does not distinguish
            them.
    """

    per_address: int = PER_ADDRESS
    in_all: int = IN_ALL
    patience_s: float = AUTHENTICATE_WITHIN_S
    only_failures: bool = False
    _unproven: OrderedDict[int, _Caller] = field(default_factory=OrderedDict)
    _allowances: OrderedDict[str, Allowance] = field(default_factory=OrderedDict)
    _strangers: Allowance = field(
        default_factory=lambda: Allowance(STRANGERS_PER_S, STRANGERS_BURST)
    )
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def arrived(self, key: int, host: str, now: float, *, no_rate: bool = False) -> Verdict:
        """A connection was accepted."""
        origin = origin_of(host)
        if not no_rate and not (self.only_failures and _is_loopback(host)):
            refusal = self._too_fast(origin, now)
            if refusal:
                return Verdict(refusal=refusal)
        dropped = self._in_the_way(origin)
        for other in dropped:
            self.gone(other, now)
        self._unproven[key] = _Caller(origin, now)
        return Verdict(dropped=dropped)

    def proven(self, key: int) -> None:
        """Record that the other side has authenticated; its address then precedes unknown ones."""
        caller = self._unproven.pop(key, None)
        if caller is not None:
            self._known[caller.origin] = None
            self._known.move_to_end(caller.origin)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def gone(self, key: int, now: float) -> None:
        """Record that the connection has ended; without authentication it counts as failed."""
        caller = self._unproven.pop(key, None)
        if caller is not None and self.only_failures:
            self._allowance(caller.origin).spend(1, now)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Connections whose time limit has passed; this call forgets them."""
        late = []
        for key, caller in self._unproven.items():
            if now - caller.since_s < self.patience_s:
                break
            late.append(key)
        for key in late:
            self.gone(key, now)
        return tuple(late)

    def next_deadline(self) -> float | None:
        """The earliest time at which `overdue` may return something."""
        oldest = next(iter(self._unproven.values()), None)
        return None if oldest is None else oldest.since_s + self.patience_s

    def __len__(self) -> int:
        return len(self._unproven)

    def _too_fast(self, origin: str, now: float) -> str:
        """Why an address, or all unknown addresses, must wait; empty if not."""
        allowance = self._allowance(origin)
        if allowance.left(now) < 1:
            what = "failed connections" if self.only_failures else "connections"
            return f"more than {RATE_PER_S:g} {what} a second from {origin}"
        if self.only_failures:
            return ""
        if origin not in self._known and not self._strangers.takes(1, now):
            return f"more than {STRANGERS_PER_S:g} connections a second from unknown addresses"
        allowance.spend(1, now)
        return ""

    def _allowance(self, origin: str) -> Allowance:
        """The allowance of an address for further connections or failures."""
        allowance = self._allowances.pop(origin, None) or Allowance(RATE_PER_S, BURST)
        self._allowances[origin] = allowance  # the most recent address is forgotten last
        while len(self._allowances) > MAX_ADDRESSES:
            self._allowances.popitem(last=False)
        return allowance

    def _in_the_way(self, origin: str) -> tuple[int, ...]:
        """The connection to close in favour of one more from this address.

        Its own oldest when it has its share; otherwise, when there is no room, the oldest of the
        address with the most connections, among unknown addresses if there are any.
        """
        own = [key for key, caller in self._unproven.items() if caller.origin == origin]
        if len(own) >= self.per_address:
            return (own[0],)
        if len(self._unproven) < self.in_all:
            return ()
        origins = [caller.origin for caller in self._unproven.values()]
        strangers = [one for one in origins if one not in self._known]
        greediest, _ = Counter(strangers or origins).most_common(1)[0]
        return (next(k for k, caller in self._unproven.items() if caller.origin == greediest),)


def origin_of(host: str) -> str:
    """The unit that counts as one address: with IPv6, the network of one host."""
    address = _parsed(host)
    if address is None:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address.packed, IPV6_PREFIX_BITS), strict=False))


def _is_loopback(host: str) -> bool:
    address = _parsed(host)
    return address is not None and address.is_loopback


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The parsed address, IPv4 where it is mapped; None when it is not an address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


# --- the connections of all listeners of one process ---------------------------------------------


MOST_CONNECTIONS: Final = 4096
RESERVED_DESCRIPTORS: Final = 64
"""Reserved for the store, the log, credentials and packages, which must always be writable."""
FEWEST_CONNECTIONS: Final = 16

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


def connections_for(descriptors: int) -> int:
    """The number of connections that this number of descriptors allows."""
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))


@dataclass(slots=True)
class Connections(Generic[ConnectionT]):
    """The number of open connections, and which of them have not authenticated."""

    in_all: int
    _unproven: dict[ConnectionT, None] = field(default_factory=dict)
    _proven: set[ConnectionT] = field(default_factory=set)

    @property
    def most_unproven(self) -> int:
        """The most of them that may be unauthenticated."""
        return min(IN_ALL, self.in_all // 4)

    def opened(self, connection: ConnectionT) -> str:
        """Count a new connection; returns why there is no room, empty when there is."""
        if len(self._unproven) + len(self._proven) >= self.in_all:
            return f"{self.in_all} connections are open"
        self._unproven[connection] = None
        return ""

    def proven(self, connection: ConnectionT) -> None:
        """The other side of a connection has authenticated."""
        if connection in self._unproven:
            del self._unproven[connection]
            self._proven.add(connection)

    def gone(self, connection: ConnectionT) -> None:
        """A connection has ended."""
        self._unproven.pop(connection, None)
        self._proven.discard(connection)

    def newest_unproven(self) -> ConnectionT | None:
        """Return the one to close when the host has no descriptor left."""
        return next(reversed(self._unproven), None)
