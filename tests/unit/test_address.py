"""HOST:PORT: what is read, what is refused, and what counts as loopback."""

from __future__ import annotations

import pytest

from dtd.address import Address, SocketPath, parse_endpoint
from dtd.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7117", "127.0.0.1", 7117),
        ("localhost:0", "localhost", 0),
        ("node-3.cluster.example:65535", "node-3.cluster.example", 65535),
        ("[::1]:7117", "::1", 7117),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_an_address_is_read_and_printed_alike(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be HOST:PORT"),
        ("localhost", "must be HOST:PORT"),
        (":7117", "must be HOST:PORT"),
        ("::1:7117", "in brackets"),
        ("::1", "in brackets"),
        ("[localhost]:1", "names no host"),
        ("[::1:1", "names no host"),
        ("999.0.0.1:1", "names no host"),
        ("a b:1", "names no host"),
        ("-a:1", "names no host"),
        ("a..b:1", "names no host"),
        ("x" * 64 + ":1", "names no host"),
        ("localhost:", "must end in a port"),
        ("localhost:65536", "must end in a port"),
        ("localhost:-1", "must end in a port"),
        ("localhost:http", "must end in a port"),
        ("localhost:\u0661", "must end in a port"),
        ("localhost:" + "1" * 5000, "must end in a port"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Address.parse(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Address(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("unix:/run/dtd/control.sock", SocketPath("/run/dtd/control.sock")),
        ("unix:/a b/\u00e4", SocketPath("/a b/\u00e4")),
        ("127.0.0.1:7117", Address("127.0.0.1", 7117)),
    ],
)
def test_a_coordinator_is_called_on_this_host_or_over_tcp(text: str, read: object) -> None:
    assert parse_endpoint(text) == read
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("unix:", "an absolute path"),
        ("unix:control.sock", "an absolute path"),
        ("unix:/run/", "must name a file"),
        ("unix:/a,/b", "must name a file"),
        ("unix:/a/../b", "must name a file"),
        ("unix:/a\nb", "must name a file"),
        ("/run/control.sock", "must be HOST:PORT or unix:/PATH"),
        ("nonsense", "must be HOST:PORT, not"),
    ],
)
def test_what_names_no_socket_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_endpoint(text)
