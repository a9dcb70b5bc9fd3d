"""What the kernel says of a connection."""

from __future__ import annotations

import socket

from dtd.net.link import round_trip_s


def test_a_connection_has_a_round_trip_time():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        assert 0.0 < round_trip_s(one) < 10.0


def test_a_closed_one_has_none():
    one = socket.socket()
    one.close()
    assert round_trip_s(one) == 0.0


def test_a_kernel_that_says_less_is_not_misread():
    class Old:
        def getsockopt(self, *_):
            return bytes(60)

    assert round_trip_s(Old()) == 0.0
