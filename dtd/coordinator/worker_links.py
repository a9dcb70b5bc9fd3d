"""Maps workers to control connections; a name has at most one connection."""

from __future__ import annotations

from collections import OrderedDict

from dtd import diagnostics
from dtd.cluster.admission import MAX_KNOWN_WORKERS
from dtd.diagnostics import Diagnostic
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link
from dtd.wire import messages as m


class WorkerLinks:
    """The registered workers' connections."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._speakers: dict[Link, tuple[str, int]] = {}
        self._serials: OrderedDict[str, str] = OrderedDict()
        self._places: dict[str, str] = {}
        self._clocks_ahead_s: dict[str, float] = {}
        self._displaced: OrderedDict[str, int] = OrderedDict()

    def names(self) -> frozenset[str]:
        """The workers that are connected."""
        return frozenset(self._links)

    def all(self) -> tuple[Link, ...]:
        """All of these connections."""
        return tuple(self._links.values())

    def link_to(self, name: str) -> Link | None:
        """A worker's connection."""
        return self._links.get(name)

    def incarnation(self, name: str) -> int:
        """Return the incarnation of the connected process of a worker; 0 when none is."""
        link = self._links.get(name)
        return self._speakers[link][1] if link is not None else 0

    def speaker(self, link: Link) -> str:
        """The name of the worker at the other end.

        Raises:
            ProtocolError: it has not registered.
        """
        if link not in self._speakers:
            raise ProtocolError(ErrorCode.WRONG_STATE, "REGISTER must come first")
        return self._speakers[link][0]

    def name_of(self, link: Link) -> str:
        """The name of the worker at the other end; empty when none has registered there."""
        return self._speakers.get(link, ("", 0))[0]

    def clash(self, message: m.Register) -> Diagnostic | None:
        """Whether another living process uses this name.

        A connection whose host died may linger while the worker is started again elsewhere, so the
        newest process takes the name.  If the one before it comes back, both live.
        """
        name = message.name
        if name not in self._links or self._displaced.get(name) != message.incarnation:
            return None
        return diagnostics.name_taken(name, self._places[name], _place(message))

    def clock_s(self, name: str, now: float) -> float:
        """A worker's monotonic clock at this time of the coordinator's; 0 when not connected."""
        return now + self._clocks_ahead_s.get(name, -now)

    def register(self, link: Link, message: m.Register, now: float) -> None:
        """The connection is this worker's; one that it had before is closed."""
        name = message.name
        old = self._links.get(name)
        if old is not None:
            _, before = self._speakers.pop(old, (name, message.incarnation))
            self._displace(name, before, by=message.incarnation)
            old.fail(
                ProtocolError(
                    ErrorCode.REFUSED,
                    f"another worker registered as {name}",
                    remedy="give every worker its own name with --name",
                )
            )
        self._links[name] = link
        self._places[name] = _place(message)
        self._clocks_ahead_s[name] = message.clock_s - now
        self._speakers[link] = (name, message.incarnation)
        self._serials.pop(name, None)
        self._serials[name] = link.identity.serial if link.identity is not None else ""
        while len(self._serials) > MAX_KNOWN_WORKERS:
            self._serials.popitem(last=False)

    def _displace(self, name: str, before: int, *, by: int) -> None:
        """Remember which process had the name, unless it is the same one that called again."""
        self._displaced.pop(name, None)
        if before != by:
            self._displaced[name] = before
        while len(self._displaced) > MAX_KNOWN_WORKERS:
            self._displaced.popitem(last=False)

    def fail_all(self, why: str) -> None:
        """End the connections of all workers; they come back."""
        for link in list(self._links.values()):
            link.fail(ProtocolError(ErrorCode.INTERNAL, why))

    def certified_by(self, serial: str) -> list[str]:
        """The workers that registered last with this certificate, connected or not."""
        return [name for name, known in self._serials.items() if known == serial]

    def forget(self, link: Link) -> tuple[str, int] | None:
        """The connection is gone; returns the name and incarnation it was registered for."""
        known = self._speakers.pop(link, None)
        if known is not None and self._links.get(known[0]) is link:
            del self._links[known[0]]
            del self._places[known[0]], self._clocks_ahead_s[known[0]]
        return known


def _place(message: m.Register) -> str:
    return f"{message.host} (pid {message.pid})"
