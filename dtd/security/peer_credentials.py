"""What the kernel says of the process at the other end of a Unix-domain socket (unix(7)).

Written down by the kernel when the connection was made, whatever the process does afterwards;
nothing that the other side sends takes part in this.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Final

ROOT_UID: Final = 0

_CREDENTIALS: Final = struct.Struct("=iII")
# asm-generic/socket.h; Python's module has no name for it.
_SO_PEERGROUPS: Final = 59
_GROUP: Final = struct.Struct("=I")
MAX_GROUPS: Final = 256
"""As many as Python's getsockopt has room for; who is in more counts by his first group alone."""


def peer_uid(connection: Any) -> int:
    """The user of the process that called, or, on the calling side, of the one that listens.

    Args:
        connection: has the `getsockopt` of a socket.

    Raises:
        OSError: the connection is gone.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def peer_groups(connection: Any) -> frozenset[int]:
    """The groups of that process; its first one alone where those are too many.

    Raises:
        OSError: the connection is gone.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    groups = {int(_CREDENTIALS.unpack(packed)[2])}
    with contextlib.suppress(OSError):
        size = MAX_GROUPS * _GROUP.size
        more = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, size)
        groups |= {group for (group,) in _GROUP.iter_unpack(more)}
    return frozenset(groups)
