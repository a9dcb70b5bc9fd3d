"""Where a worker is said to listen: where it listens, and where it is seen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dtd.coordinator.handlers.workers import _data_host
from dtd.errors import ErrorCode, ProtocolError
from dtd.wire import messages as m


class Seen:
    """A connection and its port in one."""

    def __init__(self, host):
        self.host = host
        self.noted = []

    def host_of(self, link):
        return link.host

    def peer_host(self):
        return self.host

    def note_refusal(self, host, why, remedy):
        self.noted.append((host, why, remedy))


def told(data_host, seen):
    register = m.Register(
        name="w-0",
        incarnation=1,
        pid=1,
        host="h",
        device="cpu",
        data_host=data_host,
        data_port=7200,
        version="0",
    )
    return _data_host(SimpleNamespace(port=seen), seen, register)


@pytest.mark.parametrize(
    ("data_host", "seen", "expected"),
    [
        ("", "10.0.0.1", "10.0.0.1"),
        ("", "fd00::1", "fd00::1"),
        ("0.0.0.0", "10.0.0.1", "10.0.0.1"),
        ("0.0.0.0", "head.example", "head.example"),
        ("10.0.0.7", "fd00::1", "10.0.0.7"),
        ("fd00::7", "10.0.0.1", "fd00::7"),
    ],
)
def test_it_is_called_where_it_listens(data_host, seen, expected):
    assert told(data_host, Seen(seen)) == expected


def test_ipv4_only_and_seen_at_an_ipv6_address_is_refused():
    seen = Seen("fd00::1")
    with pytest.raises(ProtocolError, match=r"w-0 listens on 0\.0\.0\.0, which is IPv4") as caught:
        told("0.0.0.0", seen)
    assert caught.value.code is ErrorCode.REFUSED
    assert seen.noted == [("fd00::1", caught.value.message, caught.value.remedy)]
