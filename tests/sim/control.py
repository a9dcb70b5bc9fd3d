"""A simulated worker's control connection: opened again and again, and dropped when it is dead.

The counterpart of `dtd.worker.control`: who hears no acknowledgement of its heartbeats for a while
connects again, for a dead connection looks like a coordinator that is merely slow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dtd.core.observe.detector import Detector
from dtd.wire import messages as m
from tests.sim.network import Port
from tests.sim.surroundings import COORDINATOR, Surroundings

PATIENCE: Final = 2
"""Heartbeat time-outs without a word from the coordinator."""


class Control:
    """One worker's link to the coordinator.

    Args:
        surroundings: clock, network, chance.
        name: the worker's.
        after: does something later, unless the process has died by then.
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
        """Call the coordinator."""
        self._detector.watch(COORDINATOR, self._surroundings.scheduler.now)
        self._port = self._surroundings.network.connect(
            self._name, COORDINATOR, None, receive=self._on_message, closed=self._on_closed
        )

    def send(self, message: m.Message) -> None:
        """Send something; lost when the connection is down."""
        if self._port is not None:
            self._port.send(message)

    def look(self) -> None:
        """Drop a connection over which nothing has come for too long."""
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
