"""The worker's connection to the coordinator: made, watched, and made again when it is lost.

Training does not depend on it.  The coordinator answers every heartbeat, so a connection on which
nothing comes back any more is dead, whatever TCP thinks; it is cut and made anew.  Messages go to
the member core (`dtd.worker.daemon`); none are decided on here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from dtd import __version__
from dtd.address import Address
from dtd.core.detector import Detector
from dtd.errors import DtdError
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Hold

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5
SILENT_TIMEOUTS: Final = 2
"""A connection is dead after so many heartbeat time-outs without an answer."""

_COORDINATOR: Final = "coordinator"


class ControlConnection:
    """Keeps one connection to the coordinator.

    Args:
        target: where it listens.
        name: this worker.
        opened: called when it has answered HELLO.
        received: called with each of its messages.
    """

    def __init__(
        self,
        target: Address,
        *,
        name: str,
        opened: Callable[[], None],
        received: Callable[[m.Message], None],
    ) -> None:
        self._target = target
        self._name = name
        self._opened = opened
        self._received = received
        self._link: Link | None = None
        self._disconnected = asyncio.Event()
        self._detector: Detector | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent now."""
        return self._link is not None

    def send(self, message: m.Message, payload: bytes = b"") -> None:
        """Send a message; lost when there is no connection."""
        if self._link is not None:
            self._link.send(message, payload)

    def close(self, reason: str) -> None:
        """Say goodbye."""
        if self._link is not None:
            self._link.send(m.Goodbye(reason=reason))
            self._link.close()

    async def keep(self) -> None:
        """Connect, and again whenever it is lost, until cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            self._disconnected.clear()
            try:
                await loop.create_connection(self._new_link, self._target.host, self._target.port)
            except OSError as error:
                if pause_s == FIRST_PAUSE_S:
                    log.warning(
                        "coordinator_unreachable", address=str(self._target), error=str(error)
                    )
            else:
                await self._disconnected.wait()
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def look(self, now: float) -> None:
        """Cut the connection if nothing has come back for too long."""
        if self._link is None or self._detector is None:
            return
        for _, reason in self._detector.suspects(now):
            log.warning("coordinator_silent", reason=reason)
            self._link.abort()

    def _new_link(self) -> Link:
        hello = m.Hello(
            role=m.Role.WORKER,
            name=self._name,
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            version=__version__,
            max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES,
        )
        return Link(self, Connection(opened=True, role=m.Role.WORKER), hello=hello)

    # --- LinkHandler -------------------------------------------------------------------------

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """The coordinator answered."""
        self._link, self._detector = link, None
        log.info("coordinator_connected", address=link.peer)
        self._opened()

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """The coordinator sends no payloads."""
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """The coordinator says something: it lives."""
        now = asyncio.get_running_loop().time()
        if isinstance(message, m.Registered):
            self._detector = Detector(
                timeout_s=SILENT_TIMEOUTS * message.heartbeat_timeout_s,
                tick_s=message.heartbeat_interval_s,
            )
            self._detector.watch(_COORDINATOR, now)
        if self._detector is not None:
            self._detector.heard(_COORDINATOR, now)
        self._received(message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        """The coordinator is away: training goes on, and we call again."""
        if link is self._link:
            self._link = None
        log.warning("coordinator_lost", error=str(error) if error else "it said goodbye")
        self._disconnected.set()
