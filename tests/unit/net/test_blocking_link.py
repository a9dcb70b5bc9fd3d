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


def test_a_payload_lies_where_it_was_placed(server, link_to):
    memory = bytearray(100_000)
    placed = []

    def place(message, payload_bytes):
        placed.append((message, payload_bytes))
        return memoryview(memory)[:payload_bytes] if isinstance(message, m.FetchData) else None

    content = bytes(range(250)) * 400
    server.script = lambda _message: m.message_bytes(DATA, content)
    link = link_to(place)
    link.send(OPEN)
    message, payload = link.receive(timeout_s=PATIENCE_S)
    assert message == DATA
    assert payload.obj is memory
    assert memory == content
    assert placed[-1] == (DATA, len(content))


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


def test_bytes_that_come_slowly_are_no_silence(slow_link):
    """Each piece comes within the bound, the whole message takes several times as long."""
    begun_s = slow_link._socket.now_s
    message, _ = slow_link.receive(silence_s=6.0)
    assert message == DATA
    assert slow_link._socket.now_s - begun_s > 12.0


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
