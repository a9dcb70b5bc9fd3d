"""Who may knock: bounds on connections whose other side has not shown yet who it is.

A listener asks before it spends anything on a connection, and tells when the other side has proven
itself or is gone.  Nobody who floods a port can keep others from being heard: each address has a
rate and a share, and where there is no room, the oldest connection of whoever has most makes way.
Addresses from which nobody has ever proven anything share one more rate, and make way first.
A listener whose callers prove themselves without costing it much may count failures alone: then
honest callers have no rate, however many share an address.  Pure: clock values in, keys of
connections out (protocol.md, "Security").
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from dtd.core.limits.rates import Allowance

PER_ADDRESS: Final = 16
IN_ALL: Final = 128
RATE_PER_S: Final = 20.0
BURST: Final = 64.0
PATIENCE_S: Final = 5.0
MAX_ADDRESSES: Final = 4096
MAX_KNOWN: Final = 1024
"""Addresses where somebody has proven who they are; the oldest are forgotten."""

STRANGERS_PER_S: Final = 100.0
STRANGERS_BURST: Final = 256.0
"""Of all other addresses together: each connection costs this side a handshake."""

IPV6_PREFIX_BITS: Final = 64


@dataclass(slots=True)
class _Caller:
    origin: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of a new connection.

    Attributes:
        refusal: why it is closed at once; empty when it may stay.
        dropped: keys of older connections that make way for it.
    """

    refusal: str = ""
    dropped: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class ConnectionLimiter:
    """The bounds of one listener.

    Connections are known by keys that the listener chooses.

    Attributes:
        per_address: most connections of one address that have not proven themselves.
        in_all: of all addresses.
        patience_s: how long one may take.
        only_failures: the rate of an address counts those that ended unproven, not all that came,
            and callers on this host have none: a loopback address does not tell them apart.
    """

    per_address: int = PER_ADDRESS
    in_all: int = IN_ALL
    patience_s: float = PATIENCE_S
    only_failures: bool = False
    _unproven: OrderedDict[int, _Caller] = field(default_factory=OrderedDict)
    _allowances: OrderedDict[str, Allowance] = field(default_factory=OrderedDict)
    _strangers: Allowance = field(
        default_factory=lambda: Allowance(STRANGERS_PER_S, STRANGERS_BURST)
    )
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def arrived(self, key: int, host: str, now: float, *, no_rate: bool = False) -> Verdict:
        """A connection was accepted.

        Args:
            key: of the connection.
            host: address of the other side.
            now: the clock, in seconds.
            no_rate: the caller is one of ours: its rate is not bounded, its share is.
        """
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
        """The other side has proven who it is: so may others at its address, before strangers."""
        caller = self._unproven.pop(key, None)
        if caller is not None:
            self._known[caller.origin] = None
            self._known.move_to_end(caller.origin)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def gone(self, key: int, now: float) -> None:
        """The connection has ended; if it was not proven, it counts as failed."""
        caller = self._unproven.pop(key, None)
        if caller is not None and self.only_failures:
            self._allowance(caller.origin).spend(1, now)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Connections that have had their time; they are forgotten with this."""
        late = []
        for key, caller in self._unproven.items():
            if now - caller.since_s < self.patience_s:
                break
            late.append(key)
        for key in late:
            self.gone(key, now)
        return tuple(late)

    def next_deadline(self) -> float | None:
        """When `overdue` has something to tell at the earliest."""
        oldest = next(iter(self._unproven.values()), None)
        return None if oldest is None else oldest.since_s + self.patience_s

    def __len__(self) -> int:
        return len(self._unproven)

    def _too_fast(self, origin: str, now: float) -> str:
        """Why an address, or all strangers, must wait; empty: they need not."""
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
        """How many more connections an address may open, or fail on."""
        allowance = self._allowances.pop(origin, None) or Allowance(RATE_PER_S, BURST)
        self._allowances[origin] = allowance  # the address heard last is the last to be forgotten
        while len(self._allowances) > MAX_ADDRESSES:
            self._allowances.popitem(last=False)
        return allowance

    def _in_the_way(self, origin: str) -> tuple[int, ...]:
        """What makes way for one more of this address.

        Its own oldest when it has its share, else, when there is no room, the oldest of the address
        that has most, of those that nobody is known at if there are any.
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
    """What counts as one address: with IPv6, the network that one host has to itself."""
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
    """An address, IPv4 where it is mapped; None when it is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
