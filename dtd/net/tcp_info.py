"""What the kernel knows of a TCP connection (tcp(7), TCP_INFO)."""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

_RTT_OFFSET_BYTES: Final = 68
_MICROSECONDS: Final = struct.Struct("=I")


def round_trip_s(connection: Any) -> float:
    """Smoothed round-trip time of a connected socket in seconds; 0 when it is not known.

    Args:
        connection: has the `getsockopt` of a socket.
    """
    size = _RTT_OFFSET_BYTES + _MICROSECONDS.size
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    except OSError:  # it has just been closed
        return 0.0
    if len(info) < size:
        return 0.0
    return float(_MICROSECONDS.unpack_from(info, _RTT_OFFSET_BYTES)[0]) / 1e6
