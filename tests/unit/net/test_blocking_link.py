"""A blocking connection: where payloads lie, how long it waits, and how another thread ends it."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest

from dtd.net import blocking_link
from dtd.net.blocking_link import BlockingLink, connect_tcp
from dtd.wire import messages as m
from dtd.wire.session import DataCredential
from tests.played_socket import PlayedSocket

PATIENCE_S = 30.0
OPEN = m.FetchOpen(resource="state/1")
DATA = m.FetchData(blob=0, offset=0)


@pytest.fixture
def link_to(server):
    """Connects to the scripted server; closed in the end."""
    made = []

    def connect(place=None):
        made.append(
            BlockingLink(
                server.address,
                role=m.Role.FETCH,
                name="tool",
                timeout_s=PATIENCE_S,
                entry=DataCredential(secret=server.secret),
                place=place,
            )
        )
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def slow_link(server, monkeypatch):
    """A link by which 16 bytes take 5 s; the time is played."""

    def connect(address, timeout_s):
        made = PlayedSocket(connect_tcp(address, timeout_s), pause_s=5.0, read_bytes=16)
        monkeypatch.setattr(blocking_link, "time", SimpleNamespace(monotonic=lambda: made.now_s))
        return made

    server.script = lambda _message: m.message_bytes(DATA, bytes(40))
    with contextlib.closing(
        BlockingLink(
            server.address,
            role=m.Role.FETCH,
            name="tool",
            timeout_s=10_000.0,
            entry=DataCredential(secret=server.secret),
            connect=connect,
        )
    ) as made:
        made.send(OPEN)
        yield made


def test_the_bound_on_a_message_counts_all_of_its_bytes(slow_link):
    with pytest.raises(TimeoutError):
        slow_link.receive(timeout_s=12.0)
    message, _ = slow_link.receive(timeout_s=100.0)
    assert message == DATA


def test_another_thread_ends_it_at_once(server, link_to):
    server.script = lambda _message: b""
    link = link_to()
    link.send(OPEN)
    server.wait_for(m.FetchOpen)
    failed = []

    def receive():
        with pytest.raises(ConnectionError) as caught:
            link.receive()
        failed.append(caught.value)

    receiving = threading.Thread(target=receive)
    receiving.start()
    link.abort()
    receiving.join(PATIENCE_S)
    assert failed
    link.close()
    link.abort()
