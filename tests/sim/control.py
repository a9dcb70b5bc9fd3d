"""A simulated worker's control connection: reopened whenever it is closed or dead.

The counterpart of `dtd.worker.control`: a worker whose heartbeats are not acknowledged for a while
reconnects, since it cannot tell a dead connection from a slow coordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dtd.cluster.workers.detector import Detector
from dtd.wire import messages as m
from tests.sim.network import Port
from tests.sim.surroundings import COORDINATOR, Surroundings

PATIENCE: Final = 2
"""Number of heartbeat timeouts without a message from the coordinator before reconnecting."""


class Control:
    """One worker's link to the coordinator.

    Args:
        surroundings: clock, network, random generators.
        name: name of the worker.
        after: runs an action after a delay, unless the process has died by then.
        received: called with every message.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        name: str,
        *,
        after: Callable[[float, Callable[[], None]], None],
        received: Callable[[m.Message], None],
    ) -> None:
        self._surroundings = surroundings
        self._name = name
        self._after = after
        self._received = received
        self._port: Port | None = None
        self._detector = Detector(
            timeout_s=PATIENCE * surroundings.heartbeat_timeout_s,
            tick_s=surroundings.heartbeat_interval_s,
        )

    def connect(self) -> None:
        """Connect to the coordinator."""
        self._detector.watch(COORDINATOR, self._surroundings.scheduler.now)
        self._port = self._surroundings.network.connect(
            self._name, COORDINATOR, None, receive=self._on_message, closed=self._on_closed
        )

    def send(self, message: m.Message) -> None:
        """Send a message; it is lost if the connection is down."""
        if self._port is not None:
            self._port.send(message)

    def look(self) -> None:
        """Drop the connection if nothing has arrived on it for too long."""
        for _, reason in self._detector.suspects(self._surroundings.scheduler.now):
            if self._port is not None:
                self._port.close(reason)
                self._on_closed(reason)

    def _on_message(self, content: object) -> bool:
        assert isinstance(content, m.Message)
        self._detector.heard(COORDINATOR, self._surroundings.scheduler.now)
        self._received(content)
        return True

    def _on_closed(self, _reason: str) -> None:
        self._port = None
        self._detector.forget(COORDINATOR)
        self._after(self._surroundings.draw(self._surroundings.pace.reconnect_s), self.connect)
