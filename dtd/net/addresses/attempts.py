"""Which of a peer's addresses is tried when.

A worker may have several addresses: of other networks, of VPNs, of bridges that exist on every host
alike.  The one that calls tries them in their order, as RFC 8305 ("Happy Eyeballs") does: the next
one when one has failed or has not answered for a moment, and takes the first at which the peer that
is meant completes the handshake.  A host that answers without the keys, or under another name, is
an attempt that failed.

`Attempts` is pure: times in, indices out.  Its shells are `Dialling` (`dtd.net.addresses.dialling`)
on the event loop, and `first_link` (`dtd.net.clients.blocking_link`).
"""

from __future__ import annotations

import math
from typing import Final

CONNECT_S: Final = 0.25
"""Time that an address has for the TCP connection (RFC 8305, "Connection Attempt Delay")."""

ANSWER_S: Final = 2.0
"""Time for the handshake on it: a worker that does not know the generation yet answers late."""


class Attempts:
    """The attempts to connect to one peer, one at each address, in the order of addresses."""

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
        if index in self._head_starts:
            self._head_starts[index] = now + ANSWER_S

    def failed(self, index: int) -> None:
        self._head_starts.pop(index, None)

    @property
    def over(self) -> bool:
        return self._started == self._count and not self._head_starts
