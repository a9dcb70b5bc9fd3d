"""Maps workers to control connections, and derives the secrets that each of them may know.

A name has at most one connection.  The cluster core (`dtd.cluster`) has no access to secrets: each
is derived from the generation, the worker and the coordinator's data key (`dtd.wire.data_keys`), so
it stays the same after a restart.  Nothing here is stored or logged.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dtd.cluster.workers.admission import MAX_KNOWN_WORKERS
from dtd.errors import ErrorCode, ProtocolError
from dtd.net.data_port.resources import PROBE_SCOPE
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.data_keys import generation_secret, ticket_key, worker_secret

TICKET_LIFE_S: Final = 3600
"""By the monotonic clock of the ticket's worker."""


class WorkerLinks:
    """The registered workers' connections."""

    def __init__(self, data_key: bytes, now: Callable[[], float]) -> None:
        self._data_key = data_key
        self._now = now
        self._links: dict[str, Link] = {}
        self._speakers: dict[Link, tuple[str, int]] = {}
        self._serials: OrderedDict[str, str] = OrderedDict()
        self._clocks_ahead_s: dict[str, float] = {}

    def names(self) -> frozenset[str]:
        return frozenset(self._links)

    def all(self) -> tuple[Link, ...]:
        return tuple(self._links.values())

    def link_to(self, name: str) -> Link | None:
        return self._links.get(name)

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

    def register(self, link: Link, message: m.Register) -> None:
        """The connection is this worker's; one that it had before is closed."""
        name = message.name
        old = self._links.get(name)
        if old is not None:
            self._speakers.pop(old, None)
            old.fail(
                ProtocolError(
                    ErrorCode.REFUSED,
                    f"another worker registered as {name}",
                    remedy="give every worker its own name with --name",
                )
            )
        self._links[name] = link
        self._clocks_ahead_s[name] = message.clock_s - self._now()
        self._speakers[link] = (name, message.incarnation)
        self._serials.pop(name, None)
        self._serials[name] = link.identity.serial if link.identity is not None else ""
        while len(self._serials) > MAX_KNOWN_WORKERS:
            self._serials.popitem(last=False)

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
            del self._clocks_ahead_s[known[0]]
        return known

    # --- secrets -------------------------------------------------------------------------------

    def filled(self, message: m.Message, to: str) -> m.Message:
        """The message with the secrets that the worker `to` may know."""
        if isinstance(message, m.Assign):
            secret = generation_secret(
                self._data_key, message.job, message.generation, message.roster_id
            )
            return dataclasses.replace(message, secret=secret)
        if isinstance(message, m.Registered):
            return dataclasses.replace(message, secret=self._secret(to))
        if isinstance(message, m.Probe | m.Measure) and message.name:
            expires_s, key = self.ticket(message.name, PROBE_SCOPE)
            return dataclasses.replace(message, ticket_expires_s=expires_s, ticket_key=key)
        return message

    def ticket(self, name: str, scope: str) -> tuple[int, bytes]:
        """Return the expiry, by its clock, and the key of a worker's data port for `scope`."""
        now = self._now()
        expires_s = int(now + self._clocks_ahead_s.get(name, -now)) + TICKET_LIFE_S
        return expires_s, ticket_key(self._secret(name), scope, expires_s)

    def _secret(self, name: str) -> bytes:
        """Return the secret of the connected process of a worker."""
        link = self._links.get(name)
        incarnation = self._speakers[link][1] if link is not None else 0
        return worker_secret(self._data_key, name, incarnation)
