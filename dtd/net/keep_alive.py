"""Have the kernel watch a TCP connection that nothing else watches (tcp(7))."""

from __future__ import annotations

import socket
from typing import Any, Final

IDLE_S: Final = 10
DEAD_S: Final = 30


def keep_alive(connection: Any) -> None:
    """Ask when the other side is quiet, and give it up when it is dead.

    Not where the other side may stop reading: that counts as dead too.

    Args:
        connection: has the `setsockopt` of a socket.
    """
    options = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): IDLE_S,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): IDLE_S // 2,
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): DEAD_S * 1000,
    }
    for (level, option), value in options.items():
        connection.setsockopt(level, option, value)
