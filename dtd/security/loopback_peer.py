"""Which user is at the other end of a TCP connection on this machine: the kernel's own table knows.

`/proc/net/tcp` and `/proc/net/tcp6` have a row for each end of each connection.  The row whose
local address is the caller's and whose remote address is ours is the caller's end; it states the
user who opened it.  Nothing the caller sends takes part in this.  Reading takes a millisecond per
some thousand connections: call it in a thread.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final

from dtd.address import Address

TABLES: Final = Path("/proc/net")
_UID_COLUMN: Final = 7
_MAPPED_PREFIX: Final = bytes(10) + b"\xff\xff"


def owner_uid(caller: Address, listener: Address, *, tables: Path = TABLES) -> int | None:
    """The user whose socket calls; None when the kernel has no such row.

    Args:
        caller: the remote end as our accepted socket names it.
        listener: our own end, as the accepted socket names it; numeric like the caller's.
        tables: where the kernel shows its tables.
    """
    for table, local, remote in _rows_wanted(caller, listener):
        try:
            content = (tables / table).read_bytes()
        except FileNotFoundError:  # a kernel without IPv6
            continue
        uid = _uid_of(content, f" {local} {remote} ".encode())
        if uid is not None:
            return uid
    return None


def _rows_wanted(caller: Address, listener: Address) -> list[tuple[str, str, str]]:
    """(table, local column, remote column); an IPv4 caller may use an IPv6 socket."""
    packed = [(_packed(end.host), end.port) for end in (caller, listener)]
    rows = []
    if all(len(address) == 4 for address, _ in packed):
        rows.append(("tcp", *(_column(address, port) for address, port in packed)))
        packed = [(_MAPPED_PREFIX + address, port) for address, port in packed]
    rows.append(("tcp6", *(_column(address, port) for address, port in packed)))
    return rows  # type: ignore[return-value]


def _packed(host: str) -> bytes:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).packed


def _column(address: bytes, port: int) -> str:
    """The kernel prints each 32 bits of an address as a number of the machine's byte order."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def _uid_of(table: bytes, needle: bytes) -> int | None:
    """The rows are searched as they are: taking them all apart would take far longer."""
    start = table.find(needle)
    if start < 0:
        return None
    line_start = table.rfind(b"\n", 0, start) + 1
    line_end = table.find(b"\n", start)
    columns = table[line_start : line_end if line_end >= 0 else None].split()
    return int(columns[_UID_COLUMN])


def caller_of(accepted: socket.socket) -> tuple[Address, Address]:
    """(remote end, own end) of an accepted socket.

    Raises:
        OSError: the connection is gone already.
    """
    remote, own = accepted.getpeername(), accepted.getsockname()
    return Address(remote[0], remote[1]), Address(own[0], own[1])
