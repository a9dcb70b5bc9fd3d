"""A proxy's faults on a connection, with plain sockets on both sides."""

from __future__ import annotations

import select
import socket

import pytest

from dtd.address import Address
from dtd.wire import messages as m
from scripts.cluster.fault_proxy import TO_CALLER, TO_TARGET, FaultProxy

PATIENCE_S = 60.0
# Shorter than it takes to be sure that nothing comes; longer than it takes on a busy machine.
SURELY_S = 0.2


class Ends:
    """A listening target behind a proxy, and connections through it."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.proxy = FaultProxy(
            Address("127.0.0.1", 0), Address("127.0.0.1", self.server.getsockname()[1])
        )
        self.proxy.start()
        self.sockets = [self.server]

    def connect(self):
        caller = socket.create_connection(
            (self.proxy.address.host, self.proxy.address.port), PATIENCE_S
        )
        self.server.settimeout(PATIENCE_S)
        target, _ = self.server.accept()
        target.settimeout(PATIENCE_S)
        self.sockets += [caller, target]
        return caller, target

    def close(self):
        self.proxy.close()
        for one in self.sockets:
            one.close()


@pytest.fixture
def ends():
    made = Ends()
    yield made
    made.close()


def receive(end, count):
    data = b""
    while len(data) < count:
        piece = end.recv(count - len(data))
        if not piece:
            return data
        data += piece
    return data


def is_quiet(end):
    return select.select([end], [], [], SURELY_S)[0] == []


def hello(name):
    return m.message_bytes(
        m.Hello(
            role=m.Role.RING,
            name=name,
            protocol_min=1,
            protocol_max=1,
            version="0",
            max_payload_bytes=1 << 20,
        )
    )


def connect(ends, name="worker-1"):
    """A connection whose caller has introduced itself."""
    caller, target = ends.connect()
    caller.sendall(hello(name))
    assert receive(target, len(hello(name))) == hello(name)
    return caller, target


def test_everything_passes_in_both_directions_and_so_does_the_end(ends):
    caller, target = connect(ends)
    sent = bytes(range(256)) * 4000
    target.sendall(sent)
    assert receive(caller, len(sent)) == sent
    caller.sendall(b"last words")
    caller.shutdown(socket.SHUT_WR)
    assert receive(target, 100) == b"last words"
    target.sendall(b"answer")
    target.close()
    assert receive(caller, 100) == b"answer"


def test_silence_holds_one_direction_and_restoring_delivers_it(ends):
    caller, target = connect(ends)
    ends.proxy.silence(TO_TARGET)
    caller.sendall(b"held")
    target.sendall(b"passes")
    assert receive(caller, 6) == b"passes"
    assert is_quiet(target)
    ends.proxy.restore()
    assert receive(target, 4) == b"held"


def test_one_bit_is_flipped_once_after_so_many_bytes(ends):
    caller, target = connect(ends)
    flip = ends.proxy.flip_next(TO_CALLER, after_bytes=5)
    target.sendall(bytes(4))
    assert receive(caller, 4) == bytes(4)
    assert not flip.done.is_set()
    target.sendall(bytes(8))
    damaged = receive(caller, 8)
    assert flip.done.wait(PATIENCE_S)
    assert [bin(byte).count("1") for byte in damaged] == [0, 1, 0, 0, 0, 0, 0, 0]
    target.sendall(bytes(8))
    assert receive(caller, 8) == bytes(8)


def test_delay_and_narrowness_keep_the_order(ends):
    caller, target = connect(ends)
    ends.proxy.delay(TO_TARGET, 0.05)
    ends.proxy.narrow(TO_TARGET, 1e6)
    sent = b"".join(bytes([index]) * 1000 for index in range(100))
    for start in range(0, len(sent), 7000):
        caller.sendall(sent[start : start + 7000])
    assert receive(target, len(sent)) == sent
