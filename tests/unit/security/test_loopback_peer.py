"""The kernel's table of connections: the row of the caller's end, and no other."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dtd.address import Address
from dtd.security.loopback_peer import caller_of, owner_uid

HEAD = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout\n"
)
ROW = "   0: {} {} 01 00000000:00000000 00:00000000 00000000  {}        0 12345 1 0\n"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "tcp").write_text(
        HEAD
        + ROW.format("0100007F:1BCD", "0100007F:C350", 0)  # our own end: the same pair turned round
        + ROW.format("0100007F:C350", "0100007F:1BCD", 1000)
        + ROW.format("0100007F:C351", "0100007F:1BCD", 1001)
    )
    mapped = "0000000000000000FFFF00000100007F"
    (tmp_path / "tcp6").write_text(
        HEAD
        + ROW.format(f"{mapped}:C352", f"{mapped}:1BCD", 1002)
        + ROW.format(f"{'0' * 24}01000000:C350", f"{'0' * 24}01000000:1BCD", 1003)
    )
    return tmp_path


@pytest.mark.parametrize(
    ("host", "port", "uid"),
    [
        ("127.0.0.1", 50000, 1000),
        ("127.0.0.1", 50001, 1001),
        ("127.0.0.1", 50002, 1002),
        ("::ffff:127.0.0.1", 50000, 1000),
        ("::1", 50000, 1003),
        ("127.0.0.1", 50003, None),
        ("127.0.0.2", 50000, None),
    ],
)
def test_the_callers_row_is_found(tables: Path, host: str, port: int, uid: int | None) -> None:
    listener = Address(host.replace("127.0.0.2", "127.0.0.1"), 7117)
    assert owner_uid(Address(host, port), listener, tables=tables) == uid


def test_a_kernel_without_ipv6_has_no_second_table(tables: Path) -> None:
    (tables / "tcp6").unlink()
    assert owner_uid(Address("127.0.0.1", 9), Address("127.0.0.1", 7117), tables=tables) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_this_kernel_knows_this_user(host: str) -> None:
    try:
        listener = socket.create_server(
            (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener, socket.create_connection(listener.getsockname()[:2]):
        accepted, _peer = listener.accept()
        with accepted:
            assert owner_uid(*caller_of(accepted)) == os.geteuid()
