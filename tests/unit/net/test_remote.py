"""What a connection knows of its other end."""

from __future__ import annotations

import pytest

from dtd.net.remote import Remote


class Transport:
    """A transport between two addresses; it forgets them when the connection is reset."""

    def __init__(self, own, peer):
        self.names = {"sockname": own, "peername": peer}

    def get_extra_info(self, name):
        return self.names.get(name)


@pytest.mark.parametrize(
    ("own", "peer", "same"),
    [
        (("127.0.0.1", 7117), ("127.0.0.1", 40000), True),
        (("10.0.0.5", 7117), ("10.0.0.5", 40000), True),
        (("10.0.0.5", 7117), ("10.0.0.6", 7117), False),
        (("127.0.0.1", 7117), ("127.0.0.2", 40000), False),
        (("fe80::1", 1, 0, 2), ("fe80::1", 2, 0, 2), True),
        (("::1", 1, 0, 0), ("::2", 2, 0, 0), False),
        (None, ("10.0.0.6", 7117), False),
        (("10.0.0.5", 7117), None, False),
        ("", "", False),  # a Unix socket without a name
    ],
)
def test_one_address_at_both_ends_is_one_host(own, peer, same):
    remote = Remote()
    assert not remote.is_same_host
    remote._attach(Transport(own, peer))
    assert remote.is_same_host is same


def test_it_is_found_out_once():
    remote = Remote()
    transport = Transport(("10.0.0.5", 7117), ("10.0.0.5", 40000))
    remote._attach(transport)
    transport.names.clear()
    assert remote.is_same_host
    assert remote.peer == "10.0.0.5:40000"
