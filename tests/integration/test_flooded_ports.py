"""Strangers fill the data ports of real workers, whose ring forms anew all the same, and trains."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import resource
import selectors
import socket
import threading

import pytest

from dtd.address import is_loopback
from dtd.net.server import MAX_CONNECTIONS
from dtd.wire import messages as m

pytestmark = pytest.mark.integration

WORKERS = 3
KILLED = "worker-2"
SURVIVORS = ("worker-0", "worker-1")
PATIENCE_S = 100.0
STANDING = MAX_CONNECTIONS + 50
"""More than a port takes in all: unless it bounds strangers, there is no room for others."""

SOURCE_PORTS = itertools.cycle(range(10_000, 32_000))
"""Below those that the kernel gives away: daemons that start again beside this need theirs."""

OPENED_AT_ONCE = 5
PAUSE_S = 0.01
"""The flood fills the ports, not the processors of this machine: others need those."""


class Flood(threading.Thread):
    """Keeps so many connections open that say nothing, from all addresses that this host has.

    It ends when it is over, or when nobody listens any more.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self.filled = threading.Event()
        self.over = threading.Event()
        self.turned_away = 0
        self._port = port
        self._sources = itertools.cycle(["127.0.0.1", *own_addresses()])
        self._open = selectors.DefaultSelector()

    def run(self) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            for _ in range(STANDING):
                self._call()
            self.filled.set()
            while not self.over.wait(PAUSE_S):
                for key, _ in self._open.select(0)[:OPENED_AT_ONCE]:
                    self._lose(key.fileobj)
                    self._call()
        for key in tuple(self._open.get_map().values()):
            key.fileobj.close()
        self._open.close()

    def _call(self) -> None:
        made = self._connected()
        made.settimeout(0.0)
        self._open.register(made, selectors.EVENT_READ)

    def _connected(self) -> socket.socket:
        while True:
            source = (next(self._sources), next(SOURCE_PORTS))
            try:
                return socket.create_connection(("127.0.0.1", self._port), PATIENCE_S, source)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise

    def _lose(self, ended: socket.socket) -> None:
        self.turned_away += 1
        self._open.unregister(ended)
        ended.close()


def own_addresses() -> list[str]:
    """An address of this machine besides loopback, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: finds out how it would be sent
        except OSError:
            return []
        own = asking.getsockname()[0]
    return [] if is_loopback(own) else [own]


def data_port(daemons, name):
    lines = daemons.child(name).log_path.read_text().splitlines()
    return next(
        line["data_port"] for line in map(json.loads, lines) if line["event"] == "worker_started"
    )


@pytest.fixture
def descriptors():
    """As many as the floods need."""
    needed = len(SURVIVORS) * STANDING + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        pytest.skip(f"this user may open {hard} files, and {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def make_flood(descriptors):
    begun = []

    def make(port):
        begun.append(Flood(port))
        begun[-1].start()
        return begun[-1]

    yield make
    for flood in begun:
        flood.over.set()
        flood.join()


def test_a_ring_forms_anew_and_trains_though_the_ports_are_flooded(start_daemons, make_flood):
    daemons = start_daemons(WORKERS)
    gates = daemons.hold(5, 40)
    job = daemons.submit("elastic.min_workers=2", "job.epochs=12", gates=gates)
    first = daemons.await_event("generation_running", job=job)
    floods = [make_flood(data_port(daemons, name)) for name in SURVIVORS]
    for flood in floods:
        assert flood.filled.wait(PATIENCE_S)
    daemons.ask(m.KillWorker(name=KILLED, signal="KILL"))
    daemons.await_event("worker_lost", KILLED)
    gates.open(0)
    second = daemons.await_event("generation_running", job=job)
    assert second["generation"] == first["generation"] + 1  # it formed at the first try

    before = [flood.turned_away for flood in floods]
    daemons.until(
        job, lambda: all(f.turned_away > n + 100 for f, n in zip(floods, before, strict=True))
    )
    gates.open(1)
    answer = daemons.wait(job)
    assert (answer["state"], answer["result"]["steps_lost"]) == ("done", 0)
    assert sorted(answer["result"]["replica_digests"]) == list(SURVIVORS)
    assert len(daemons.events("generation_running", job)) == 2
    assert len(daemons.events("worker_lost", job)) == 1
