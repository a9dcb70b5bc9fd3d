"""Message rates of workers: connections that exceed them are read later.

A message costs this process a fraction of a millisecond; without a rate limit, one member that
floods its connection would delay all others and operators.  One that connects and disconnects
repeatedly would fill the store, since each of these is an event.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dtd.net.link import Link
from dtd.net.rates import Pacing
from dtd.security.identity import LOCAL
from dtd.wire import messages as m
from dtd.wire.frames import HOLD, Hold

MESSAGES_PER_S: Final = 500.0
"""Rate of one credential.  A host of sixteen workers needs about a hundred."""

MESSAGES_AT_ONCE: Final = 250.0
BYTES_OF_A_MESSAGE: Final = 32 * 1024
"""A payload of so many bytes counts as one message more."""

REGISTERED_PER_S: Final = 2.0
REGISTERED_AT_ONCE: Final = 16.0
"""Burst of one worker's name, on all its connections, one after the other."""


class Pace:
    """The rates of all workers; belongs to the event loop."""

    def __init__(self) -> None:
        self._pacing = Pacing(rate_per_s=MESSAGES_PER_S, burst=MESSAGES_AT_ONCE)
        self._registering = Pacing(rate_per_s=REGISTERED_PER_S, burst=REGISTERED_AT_ONCE)

    def place(self, link: Link, message: m.Message, payload_bytes: int) -> Hold | None:
        """Whether a worker's message has to wait; then its connection is not read meanwhile."""
        if link.session.role is not m.Role.WORKER:
            return None
        loop = asyncio.get_running_loop()
        if isinstance(message, m.Register):
            wait_s = self._registering.wait_s(message.name, loop.time())
        else:
            amount = 1 + payload_bytes // BYTES_OF_A_MESSAGE
            wait_s = self._pacing.wait_s(_credential_of(link), loop.time(), amount)
        if not wait_s:
            return None
        loop.call_later(wait_s, link.resume)
        return HOLD


def _credential_of(link: Link) -> tuple[str, str]:
    """Workers of the coordinator's own user are told apart by their connections."""
    who = link.identity
    if who is None or who.role == LOCAL:
        return "", str(id(link))
    return who.role, who.name
