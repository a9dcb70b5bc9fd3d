"""The number of connections that each caller may have, so that none exhausts the others' share.

The connection limiter bounds who has not shown who they are; this bounds those who have: each
identity, each role, and all together, with a reserve that none but operators and the coordinator's
own user can take.  Pure (protocol.md, "Limits").
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dtd.limits.connection_limiter import IN_ALL as MOST_UNPROVEN
from dtd.security.identity import Identity

MOST_CONNECTIONS: Final = 4096
RESERVED_DESCRIPTORS: Final = 64
"""Reserved for the store, the log, credentials and packages, which must always be writable."""

FEWEST_CONNECTIONS: Final = 16
VIEWER: Final = "viewer"
WORKER: Final = "worker"
BOUNDED: Final = (VIEWER, WORKER)
"""Roles that have a share; operators and the coordinator's own user use what is left."""

MOST_OF_A_VIEWER: Final = 16
MOST_OF_A_WORKER: Final = 64
"""A host has one credential, one worker for each device, and lingering connections."""

Key = tuple[str, str]


def connections_for(descriptors: int) -> int:
    """The number of connections that this number of descriptors allows."""
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS))


ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(slots=True)
class Shares(Generic[ConnectionT]):
    """The connections of all listeners of one process, by identity.

    Attributes:
        in_all: most connections in all, including unauthenticated ones.
        of_callers: whether identities and roles have their own shares.
    """

    in_all: int
    of_callers: bool = True
    _callers: dict[ConnectionT, Key | None] = field(default_factory=dict)

    @property
    def unproven(self) -> int:
        """The most of them that may be unauthenticated."""
        return min(MOST_UNPROVEN, self.in_all // 4)

    def opened(self, connection: ConnectionT) -> str:
        """Count a new connection; returns why there is no room, empty when there is."""
        if len(self._callers) >= self.in_all:
            return f"{self.in_all} connections are open"
        self._callers[connection] = None
        return ""

    def known(self, connection: ConnectionT, who: Identity) -> str:
        """A caller has authenticated; returns why it may not stay, empty when it may."""
        key = who.role, who.name
        why = self._too_many(key) if self.of_callers and who.role in BOUNDED else ""
        if not why:
            self._callers[connection] = key
        return why

    def gone(self, connection: ConnectionT) -> None:
        """A connection has ended."""
        self._callers.pop(connection, None)

    def newest_idler(self) -> ConnectionT | None:
        """Return the one to close when the host is full: newest unauthenticated, else viewer's."""
        for idle in (None, VIEWER):
            for connection, key in reversed(self._callers.items()):
                if (key and key[0]) == idle:
                    return connection
        return None

    def _too_many(self, key: Key) -> str:
        role, name = key
        viewers = self.in_all // 4
        own = min(MOST_OF_A_VIEWER, viewers // 2) if role == VIEWER else MOST_OF_A_WORKER
        callers = [one for one in self._callers.values() if one is not None and one[0] in BOUNDED]
        if callers.count(key) >= own:
            return f"{own} connections of {role}/{name} are open"
        if role == VIEWER and sum(one[0] == VIEWER for one in callers) >= viewers:
            return f"{viewers} connections of viewers are open"
        most = self.in_all - self.unproven - self.in_all // 8
        if len(callers) >= most:
            return f"{most} connections are open, and the rest is reserved for operators"
        return ""
