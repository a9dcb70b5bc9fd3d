"""A process that is killed is known to be dead before its memory is freed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.net.lifeline import Lifeline
from dtd.wire import messages as m
from dtd.wire.greeting import DataCredential, welcome
from dtd.wire.session import Session

PATIENCE_S = 60.0
SECRET = b"s" * 32


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


def address_of(server: socket.socket) -> Address:
    return Address(*server.getsockname())


def entry(generation: int) -> DataCredential:
    return DataCredential(secret=SECRET, generation=generation)


def greeted(server: socket.socket) -> tuple[socket.socket, int]:
    """The connection, once it is welcome and has proved itself, and the generation it stated."""
    link, _ = server.accept()
    link.settimeout(PATIENCE_S)
    session = Session(accepts=frozenset({m.Role.LIFELINE}), random_bytes=bytes)
    [hello] = received(link, session)
    assert isinstance(hello, m.Hello)
    link.sendall(session.welcome(welcome("w"), secret=SECRET))
    assert received(link, session) == [m.Prove()]
    return link, hello.generation


def received(link: socket.socket, session: Session) -> list[m.Message]:
    """What comes next, as soon as it is whole."""
    arrived: list[m.Message] = []
    while not arrived:
        data = link.recv(4096)
        assert data
        arrived = [message for message, _payload in session.feed(data)]
    return arrived


def test_it_connects_and_greets_and_lets_go_of_what_it_held(server: socket.socket) -> None:
    lifeline = Lifeline()
    lifeline.start()
    lifeline.hold([address_of(server)], name="w", entry=entry(1), timeout_s=PATIENCE_S)
    first, greeting = greeted(server)
    assert greeting == 1
    lifeline.hold([address_of(server)], name="w", entry=entry(2), timeout_s=PATIENCE_S)
    second, greeting = greeted(server)
    assert greeting == 2
    assert first.recv(1) == b""
    lifeline.hold([], name="w", entry=entry(3), timeout_s=PATIENCE_S)
    assert second.recv(1) == b""


def test_who_cannot_be_reached_is_left_out(server: socket.socket, free_address: Address) -> None:
    lifeline = Lifeline()
    lifeline.start()
    there = [free_address, address_of(server)]
    lifeline.hold(there, name="w", entry=entry(1), timeout_s=PATIENCE_S)
    link, greeting = greeted(server)
    assert greeting == 1
    link.close()


def test_its_descriptors_are_not_those_of_the_process(server: socket.socket) -> None:
    lifeline = Lifeline()
    lifeline.start()
    lifeline.hold([address_of(server)], name="w", entry=entry(1), timeout_s=PATIENCE_S)
    link, _ = greeted(server)
    with link:
        own = {
            int(entry.name) for entry in Path(f"/proc/self/task/{lifeline.native_id}/fd").iterdir()
        }
    assert server.fileno() not in own
    assert len([number for number in own if number > 2]) == 1


CHILD = """
import socket, sys
from dtd.address import Address
from dtd.wire.greeting import DataCredential
from dtd.net.lifeline import Lifeline
target = Address("127.0.0.1", int(sys.argv[1]))
plain = socket.create_connection((target.host, target.port))
lifeline = Lifeline()
lifeline.start()
lifeline.hold([target], name="w", entry=DataCredential(secret=b"s" * 32), timeout_s=10.0)
ballast = bytearray(b"x") * (300 << 20)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_killed_process_cuts_its_lifeline(server: socket.socket) -> None:
    port = str(address_of(server).port)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        plain, _ = server.accept()
        link, _ = greeted(server)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
        assert link.recv(1) == b""
    finally:
        child.kill()
        child.communicate()
    link.close()
    plain.close()
