"""Handing an open file from one process of a host to another of the same user.

The side that wants the file opens a `FdMailbox`, a socket in a directory that no other user can
enter, and says its path; the other side connects and puts the descriptor in (`post`).  Both ask the
kernel who is at the other end before anything is sent or received.

A descriptor that somebody sent can take its time to close: that of a TCP socket that lingers waits
for its bytes to be sent, that of a file on a network for a server.  So the event loop only accepts;
receiving, looking at what came and closing it are left to threads.  See unix(7), SCM_RIGHTS and
SO_PEERCRED.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from dtd.net.socket_names import short_name
from dtd.security.local_users import peer_uid

Found = TypeVar("Found")

PATIENCE_S: Final = 5.0
"""A letter is put in at once by whoever has connected; this is for one who stands still."""

_DESCRIPTOR: Final = struct.Struct("i")
_NAME: Final = re.compile(r"box-[0-9a-f]{32}")
_MAX_LETTERS: Final = 8
_MAX_PATH_BYTES: Final = 4000


class FdMailbox(Generic[Found]):
    """Where one descriptor is awaited.  Event loop only.

    Args:
        directory: where the socket lies; only this user can enter it.
        look: run in a thread with each descriptor that comes, which is closed afterwards; returns
            what it has found, or None when the file is not the right one.
        received: called on the event loop with what was found, once; the letterbox is closed then.

    Attributes:
        path: what the other side needs to know.

    Raises:
        OSError: there can be no such socket here.
    """

    def __init__(
        self,
        directory: Path,
        look: Callable[[int], Found | None],
        received: Callable[[Found], None],
    ) -> None:
        self.path = f"{directory.absolute()}/box-{secrets.token_hex(16)}"
        self._look = look
        self._received = received
        self._letters = 0
        self._listens = True
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)  # noqa: FBT003 - socket has no name for it
            with short_name(_sayable(self.path)) as name:
                self._socket.bind(name)
            self._socket.listen(_MAX_LETTERS)
            # The number: given the object, uvloop would be the one to close it, on the event loop.
            self._loop.add_reader(self._socket.fileno(), self._on_caller)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Await nothing any more; idempotent."""
        self._closed = True
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._socket.fileno())
            aside(self._take_down)

    def _take_down(self) -> None:
        """Closing drops what callers have sent who were not accepted, and closes that."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108 - no path object is needed
        self._socket.close()

    def _on_caller(self) -> None:
        try:
            caller, _ = self._socket.accept()
        except OSError:  # it is gone again, or there are too many open files
            return
        aside(self._open_letter, caller)
        self._letters += 1
        if self._letters == _MAX_LETTERS:
            self._listen_no_more()

    def _open_letter(self, caller: socket.socket) -> None:
        """In a thread: take what a caller has for us, unless it is another user."""
        found = None
        with contextlib.suppress(OSError), caller:
            if peer_uid(caller) == os.geteuid():
                found = self._taken(caller)
        if found is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, found)

    def _taken(self, caller: socket.socket) -> Found | None:
        caller.settimeout(PATIENCE_S)
        # Not `recv_fds`: it drops the flag, and a program started meanwhile would inherit.
        _, ancillary, _, _ = caller.recvmsg(
            1, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (descriptor,) = _DESCRIPTOR.unpack(data)
                try:
                    return self._look(descriptor)
                finally:
                    os.close(descriptor)
        return None

    def _deliver(self, found: Found) -> None:
        if not self._closed:
            self.close()
            self._received(found)


def post(path: str, descriptor: int) -> None:
    """Put a descriptor into the letterbox at this path.  Blocking.

    Args:
        path: as the other side has said it: nobody else's sockets get anything, wherever it leads.
        descriptor: stays the caller's.

    Raises:
        OSError: this process cannot reach it, it is full, or it belongs to another user.
    """
    if not (path.startswith("/") and _NAME.fullmatch(path.rpartition("/")[2])):
        raise OSError(f"{path[:100]!r} is no letterbox")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.settimeout(PATIENCE_S)
        with short_name(_sayable(path)) as name:
            sender.connect(name)
        uid = peer_uid(sender)
        if uid != os.geteuid():
            raise PermissionError(f"the letterbox belongs to user {uid}, not to {os.geteuid()}")
        socket.send_fds(sender, [b"\0"], [descriptor])


def aside(function: Callable[..., None], *arguments: object) -> None:
    """Run in a thread what may take longer than the event loop should wait."""
    threading.Thread(target=function, args=arguments, name="loans", daemon=True).start()


def _sayable(path: str) -> str:
    """The path, if a message can hold it.

    Raises:
        OSError: it cannot.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or not path.isprintable():
        raise OSError("the path is too long, or cannot be said")
    return path
