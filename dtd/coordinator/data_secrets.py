"""Inserts the secrets of the data plane into outgoing messages that carry them.

The cluster core (`dtd.cluster`) has no access to secrets: every secret is derived from the
generation, the worker and the coordinator's data key (`dtd.wire.data_keys`), so it stays the same
after a restart. Nothing here is stored or logged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from dtd.net.data_server import PROBE_SCOPE
from dtd.wire import messages as m
from dtd.wire.data_keys import (
    generation_secret,
    ticket_key,
    worker_secret,
)

TICKET_LIFE_S: Final = 3600
"""By the monotonic clock of the ticket's worker."""


class DataSecrets:
    """The secrets of one cluster.

    Args:
        data_key: the root of all of them.
        incarnation_of: the running process of a worker; 0 when it is not connected.
        clock_s_of: a connected worker's monotonic clock now, in seconds.
    """

    def __init__(
        self,
        data_key: bytes,
        incarnation_of: Callable[[str], int],
        clock_s_of: Callable[[str], float],
    ) -> None:
        self._data_key = data_key
        self._incarnation_of = incarnation_of
        self._clock_s_of = clock_s_of

    def filled(self, message: m.Message, to: str) -> m.Message:
        """The message with the secrets that the worker `to` may know."""
        if isinstance(message, m.Assign):
            secret = generation_secret(
                self._data_key, message.job, message.generation, message.roster_id
            )
            return dataclasses.replace(message, secret=secret)
        if isinstance(message, m.Registered):
            return dataclasses.replace(message, secret=self._worker_secret(to))
        if isinstance(message, m.Probe | m.Measure) and message.name:
            expires_s, key = self.ticket(message.name, PROBE_SCOPE)
            return dataclasses.replace(message, ticket_expires_s=expires_s, ticket_key=key)
        return message

    def ticket(self, worker: str, scope: str) -> tuple[int, bytes]:
        """Return the expiry, by its clock, and the key of a worker's data port for `scope`."""
        expires_s = int(self._clock_s_of(worker)) + TICKET_LIFE_S
        return expires_s, ticket_key(self._worker_secret(worker), scope, expires_s)

    def _worker_secret(self, worker: str) -> bytes:
        return worker_secret(self._data_key, worker, self._incarnation_of(worker))
