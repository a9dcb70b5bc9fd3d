"""A blocking connection: where payloads lie, how long it waits, and how another thread ends it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from dtd.address import Address
from dtd.net.clients import blocking_link
from dtd.net.clients.blocking_link import BlockingLink, connect_tcp
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


# --- names with several addresses -----------------------------------------------------------------


def resolves_to(monkeypatch, *addresses):
    """Any name stands for these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one.host, one.port)) for one in addresses]
    monkeypatch.setattr(blocking_link.socket, "getaddrinfo", lambda *_names, **_kinds: found)


def test_of_several_addresses_the_first_that_accepts_is_taken(server, free_address, monkeypatch):
    resolves_to(monkeypatch, free_address, server.address, free_address)
    with connect_tcp(Address("head.example", 7), PATIENCE_S) as made:
        assert made.getpeername() == (server.address.host, server.address.port)
        assert made.gettimeout() == PATIENCE_S


def test_a_dead_end_does_not_keep_the_next_address_waiting(server, monkeypatch):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        at = full.getsockname()
        ahead = [
            socket.socket() for _ in range(4)
        ]  # the kernel answers no more than it has room for
        for one in ahead:
            one.settimeout(0)
            one.connect_ex(at)
        resolves_to(monkeypatch, Address(*at), server.address)
        with connect_tcp(Address("head.example", 7), PATIENCE_S) as made:
            assert made.getpeername() == (server.address.host, server.address.port)
        for one in ahead:
            one.close()


def test_why_no_address_has_accepted_is_said(free_address, monkeypatch):
    resolves_to(monkeypatch, free_address, free_address)
    with pytest.raises(ConnectionRefusedError):
        connect_tcp(Address("head.example", 7), PATIENCE_S)
