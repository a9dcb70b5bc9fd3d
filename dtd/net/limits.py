"""Limits on connections: those that have not authenticated, by address, and all of a process.

Pure: clock values in, decisions out (protocol.md, "Security" and "Limits").
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from dtd.net.rates import Allowance

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

    def newest(self) -> int | None:
        """Return the connection to close when the process can open no more files."""
        return next(reversed(self._unproven), None)

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


MOST_CONNECTIONS: Final = 4096
RESERVED_DESCRIPTORS: Final = 64
"""Reserved for the store, the log, credentials and packages, which must always be writable."""
FEWEST_CONNECTIONS: Final = 16


def connections_for(descriptors: int) -> int:
    """The number of connections that this number of descriptors allows."""
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))


@dataclass(slots=True)
class OpenConnections:
    """The connections of all listeners of a process: how many there are, and may be."""

    most: int
    open: int = 0
