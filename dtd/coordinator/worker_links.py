"""Which worker speaks on which control connection; a name has one connection at most."""

from __future__ import annotations

from dtd.errors import ErrorCode, ProtocolError
from dtd.net.link import Link


class WorkerLinks:
    """The registered workers' connections."""

    def __init__(self) -> None:
        self._links: dict[str, Link] = {}
        self._speakers: dict[Link, tuple[str, int]] = {}

    def names(self) -> frozenset[str]:
        """The workers whose control connection stands."""
        return frozenset(self._links)

    def link_to(self, name: str) -> Link | None:
        """A worker's connection."""
        return self._links.get(name)

    def speaker(self, link: Link) -> str:
        """The name of the worker at the other end.

        Raises:
            ProtocolError: it has not registered.
        """
        if link not in self._speakers:
            raise ProtocolError(ErrorCode.WRONG_STATE, "REGISTER must come first")
        return self._speakers[link][0]

    def register(self, link: Link, name: str, incarnation: int) -> None:
        """The connection is this worker's; one that it had before is closed."""
        old = self._links.get(name)
        if old is not None:
            self._speakers.pop(old, None)
            old.fail(
                ProtocolError(
                    ErrorCode.REFUSED,
                    f"another worker registered as {name}",
                    remedy="give every worker a name of its own with --name",
                )
            )
        self._links[name] = link
        self._speakers[link] = (name, incarnation)

    def forget(self, link: Link) -> tuple[str, int] | None:
        """The connection is gone; returns the name and incarnation it was registered for."""
        known = self._speakers.pop(link, None)
        if known is not None and self._links.get(known[0]) is link:
            del self._links[known[0]]
        return known
