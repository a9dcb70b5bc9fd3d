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

PATIENCE_S = 10.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


def address_of(server: socket.socket) -> Address:
    return Address(*server.getsockname())


def greeted(server: socket.socket) -> tuple[socket.socket, bytes]:
    link, _ = server.accept()
    link.settimeout(PATIENCE_S)
    return link, link.recv(16)


def test_it_connects_and_greets_and_lets_go_of_what_it_held(server: socket.socket) -> None:
    lifeline = Lifeline()
    lifeline.start()
    lifeline.hold([address_of(server)], b"one", timeout_s=PATIENCE_S)
    first, greeting = greeted(server)
    assert greeting == b"one"
    lifeline.hold([address_of(server)], b"two", timeout_s=PATIENCE_S)
    second, greeting = greeted(server)
    assert greeting == b"two"
    assert first.recv(1) == b""
    lifeline.hold([], b"", timeout_s=PATIENCE_S)
    assert second.recv(1) == b""


def test_who_cannot_be_reached_is_left_out(server: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = address_of(gone)
    lifeline = Lifeline()
    lifeline.start()
    lifeline.hold([nobody, address_of(server)], b"hello", timeout_s=PATIENCE_S)
    link, greeting = greeted(server)
    assert greeting == b"hello"
    link.close()


def test_its_descriptors_are_not_those_of_the_process(server: socket.socket) -> None:
    lifeline = Lifeline()
    lifeline.start()
    lifeline.hold([address_of(server)], b"hello", timeout_s=PATIENCE_S)
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
from dtd.net.lifeline import Lifeline
target = Address("127.0.0.1", int(sys.argv[1]))
plain = socket.create_connection((target.host, target.port))
plain.sendall(b"plain")
lifeline = Lifeline()
lifeline.start()
lifeline.hold([target], b"lifeline", timeout_s=10.0)
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
        links = {greeting: link for link, greeting in (greeted(server), greeted(server))}
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
        assert links[b"lifeline"].recv(1) == b""
    finally:
        child.kill()
        child.communicate()
    for link in links.values():
        link.close()
