"""A connection's knowledge of its other end."""

from __future__ import annotations

import pytest

from dtd.net.link import private_ends

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
