"""A coordinator beyond its own host, and those who join it: the cluster of most security tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dtd.errors import CoordinatorUnreachable
from dtd.net.clients.control_client import ControlClient
from dtd.security.credential import Credential
from dtd.wire import messages as m
from scripts.cluster.cluster import ANSWER_S, Cluster
from scripts.cluster.processes import Child

T = TypeVar("T")

EVERYWHERE = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1")


class Beyond(Cluster):
    """A coordinator on all addresses, called at 127.0.0.1 over TLS.

    All tests of a module call from one address, whose connections have a rate.
    """

    def __init__(
        self, directory: Path, *options: str, listen: tuple[str, ...] = EVERYWHERE
    ) -> None:
        super().__init__(directory, environment={"HOME": str(directory)})
        self.start_coordinator(*listen, "--log-format", "json", *options)

    @property
    def child(self) -> Child:
        """The coordinator."""
        return self.children["coordinator"]

    @property
    def state(self) -> Path:
        """Its state directory."""
        return self.state_dir("coordinator")

    def client(
        self, credential: Credential | None = None, timeout_s: float = ANSWER_S
    ) -> ControlClient:
        """A connection, as soon as the caller's address may open one again."""
        return self.patiently(lambda: super(Beyond, self).client(credential, timeout_s))

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until the coordinator takes it."""
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            try:
                return call()
            except (CoordinatorUnreachable, OSError):
                assert time.monotonic() < deadline_s
                assert self.child.wait(0.1) is None, self.child.log_tail()


def registering(name: str, **more: object) -> m.Register:
    """The first message of a worker of this name."""
    usual = {"incarnation": 1, "pid": 1, "host": "h", "device": "cpu", "version": "0"}
    return m.Register(**{"name": name, "data_host": "", "data_port": 1, **usual, **more})


def hear(link: object, kind: type[T]) -> T:
    """The next message of this kind."""
    while True:
        message, _payload = link.receive(timeout_s=ANSWER_S)
        if isinstance(message, kind):
            return message
