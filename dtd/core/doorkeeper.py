"""Who may knock: bounds on connections whose other side has not shown yet who it is.

A listener asks before it spends anything on a connection, and tells when the other side has proven
itself or is gone.  Nobody who floods a port can keep others from being heard: each address has a
rate and a share, and where there is no room, the oldest connection of whoever has most makes way.
Pure: clock values in, keys of connections out (protocol.md, "Security").
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

PER_ADDRESS: Final = 16
IN_ALL: Final = 128
RATE_PER_S: Final = 20.0
BURST: Final = 64.0
PATIENCE_S: Final = 5.0
MAX_ADDRESSES: Final = 4096
IPV6_PREFIX_BITS: Final = 64


@dataclass(slots=True)
class _Bucket:
    """How many more connections an address may open at the moment."""

    tokens: float
    filled_s: float


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


@dataclass(slots=True)
class Doorkeeper:
    """The bounds of one listener.

    Connections are known by keys that the listener chooses.
    """

    _unproven: OrderedDict[int, _Caller] = field(default_factory=OrderedDict)
    _buckets: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict)

    def arrived(self, key: int, host: str, now: float, *, no_rate: bool = False) -> Verdict:
        """A connection was accepted.

        Args:
            key: of the connection.
            host: address of the other side.
            now: the clock, in seconds.
            no_rate: the caller is one of ours: its rate is not bounded, its share is.
        """
        origin = origin_of(host)
        if not no_rate and not self._take_token(origin, now):
            return Verdict(refusal=f"more than {RATE_PER_S:g} connections a second from {origin}")
        dropped = [*self._crowded(origin), *self._full()]
        self._unproven[key] = _Caller(origin, now)
        return Verdict(dropped=tuple(dropped))

    def forget(self, key: int) -> None:
        """The other side has proven who it is, or the connection is gone."""
        self._unproven.pop(key, None)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Connections that have had their time; they are forgotten with this."""
        late = []
        for key, caller in self._unproven.items():
            if now - caller.since_s < PATIENCE_S:
                break
            late.append(key)
        for key in late:
            del self._unproven[key]
        return tuple(late)

    def next_deadline(self) -> float | None:
        """When `overdue` has something to tell at the earliest."""
        oldest = next(iter(self._unproven.values()), None)
        return None if oldest is None else oldest.since_s + PATIENCE_S

    def __len__(self) -> int:
        return len(self._unproven)

    def _take_token(self, origin: str, now: float) -> bool:
        bucket = self._buckets.pop(origin, None) or _Bucket(BURST, now)
        self._buckets[origin] = bucket  # the address heard last is the last to be forgotten
        while len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled_s) * RATE_PER_S)
        bucket.filled_s = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _crowded(self, origin: str) -> list[int]:
        """The oldest of an address that has its share."""
        own = [key for key, caller in self._unproven.items() if caller.origin == origin]
        if len(own) < PER_ADDRESS:
            return []
        del self._unproven[own[0]]
        return [own[0]]

    def _full(self) -> list[int]:
        """The oldest of the address that has most, when there is no room."""
        if len(self._unproven) < IN_ALL:
            return []
        counts: dict[str, int] = {}
        for caller in self._unproven.values():
            counts[caller.origin] = counts.get(caller.origin, 0) + 1
        greediest = max(counts, key=lambda origin: counts[origin])
        oldest = next(k for k, caller in self._unproven.items() if caller.origin == greediest)
        del self._unproven[oldest]
        return [oldest]


def origin_of(host: str) -> str:
    """What counts as one address: with IPv6, the network that one host has to itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address.packed, IPV6_PREFIX_BITS), strict=False))
