"""What a connection knows of its other end."""

from __future__ import annotations

import pytest

from dtd.net import link as remote_module
from dtd.net.link import Remote, private_ends


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


HERE = ("127.0.0.1", 40000)
THERE = ("127.0.0.1", 7117)


def test_both_ends_of_a_loopback_connection_call_it_the_same():
    ends = private_ends(HERE, THERE, opened=True, encrypted=False)
    assert len(ends) == 16
    assert private_ends(THERE, HERE, opened=False, encrypted=False) == ends
    mapped = ("::ffff:127.0.0.1", 7117, 0, 0), ("::ffff:127.0.0.1", 40000, 0, 0)
    assert private_ends(*mapped, opened=False, encrypted=False) == ends
    others = [
        private_ends(THERE, HERE, opened=True, encrypted=False),
        private_ends(("127.0.0.1", 40001), THERE, opened=True, encrypted=False),  # of a proxy
        private_ends(("::1", 40000, 0, 0), ("::1", 7117, 0, 0), opened=True, encrypted=False),
    ]
    assert len({ends, *others}) == 4
    assert b"" not in others


@pytest.mark.parametrize(
    ("own", "peer"),
    [
        (HERE, ("10.0.0.5", 7117)),
        (("10.0.0.5", 7117), HERE),
        (None, HERE),  # the connection was reset
        (HERE, None),
        (("10.0.0.5", 1), ("10.0.0.5", 2)),
    ],
)
def test_what_others_may_reach_has_no_such_name(own, peer):
    assert private_ends(own, peer, opened=True, encrypted=False) == b""
    assert private_ends(own, peer, opened=True, encrypted=True) == b"tls"


def test_a_host_that_is_not_known_is_nobodys(monkeypatch):
    class Unreadable(type(remote_module.Path())):
        def read_bytes(self):
            raise FileNotFoundError(str(self))

    remote_module._network.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(remote_module, "Path", Unreadable)
        assert private_ends(HERE, THERE, opened=True, encrypted=False) == b""
    remote_module._network.cache_clear()
    assert private_ends(HERE, THERE, opened=True, encrypted=False)
