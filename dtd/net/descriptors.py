"""Handing an open file from one process of a host to another.

The side that wants the file opens a `Letterbox`, a datagram socket whose name nobody can guess, and
says the name where only the right side hears it; the other side puts the descriptor in.  The name
lives in the network namespace, not in the file system: nothing is left behind, and neither users
nor mount namespaces of the two processes matter.  See unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Final

_DESCRIPTOR: Final = struct.Struct("i")
_PREFIX: Final = "dtd-"
_NAME_BYTES: Final = 16
_MAX_LETTERS: Final = 8
"""Any process of the host can write to a name that it finds in /proc/net/unix."""


class Letterbox:
    """Where one descriptor is awaited.  Event loop only.

    Args:
        received: called with each descriptor that comes, which is then the callee's to close.

    Attributes:
        name: what the other side needs to know.

    Raises:
        OSError: there can be no such socket here.
    """

    def __init__(self, received: Callable[[int], None]) -> None:
        self.name = _PREFIX + secrets.token_hex(_NAME_BYTES)
        self._received = received
        self._letters = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)  # noqa: FBT003 - socket has no name for it
            self._socket.bind("\0" + self.name)
            asyncio.get_running_loop().add_reader(self._socket, self._on_letter)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Await nothing any more; idempotent."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _on_letter(self) -> None:
        try:
            # Not `recv_fds`: it drops the flag, and a program started meanwhile would inherit.
            _, ancillary, _, _ = self._socket.recvmsg(
                1, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        self._letters += 1
        if self._letters == _MAX_LETTERS:
            self.close()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._received(*_DESCRIPTOR.unpack(data))


def post(name: str, descriptor: int) -> None:
    """Put a descriptor into the letterbox of that name, if this process can reach it."""
    if not name.startswith(_PREFIX):
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
    ):
        sender.setblocking(False)  # noqa: FBT003 - socket has no name for it
        sender.connect("\0" + name)
        socket.send_fds(sender, [b"\0"], [descriptor])
