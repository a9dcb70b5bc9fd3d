"""Passes an open file from one process to another of the same user on the same host.

The receiving side opens an `FdMailbox`, a socket in a directory that no other user can enter, and
states its path; the other side connects and sends the descriptor (`post`).  Both ask the kernel for
the other end's user before anything is sent or received.

Closing a received descriptor can block: a lingering TCP socket waits for its bytes to be sent, a
file on a network file system for its server.  So the event loop only accepts; receiving, checking
and closing run in threads.  See unix(7), SCM_RIGHTS and
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

from dtd.net.local_socket import short_name
from dtd.security.identity import peer_uid

Found = TypeVar("Found")

POST_WITHIN_S: Final = 5.0
"""A sender posts immediately after connecting; this bounds one that does not."""

_DESCRIPTOR: Final = struct.Struct("i")
_NAME: Final = re.compile(r"box-[0-9a-f]{32}")
_MAX_SENDERS: Final = 8
_MAX_PATH_BYTES: Final = 4000


class FdMailbox(Generic[Found]):
    """A socket at which one descriptor is expected.  Event loop only.

    Args:
        directory: the socket's directory, which only this user can enter.
        look: run in a thread with each received descriptor, which is closed afterwards; returns
            its result, or None when the file is not the expected one.
        received: called once on the event loop with that result; the mailbox is then closed.

    Raises:
        OSError: the socket cannot be created.
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
        self._senders = 0
        self._listens = True
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)  # noqa: FBT003 - socket has no name for it
            with short_name(_checked(self.path)) as name:
                self._socket.bind(name)
            self._socket.listen(_MAX_SENDERS)
            # Pass the number: given the object, uvloop would close it on the event loop.
            self._loop.add_reader(self._socket.fileno(), self._on_sender)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Stop listening; idempotent."""
        self._closed = True
        self._listen_no_more()

    def _listen_no_more(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._socket.fileno())
            in_thread(self._remove)

    def _remove(self) -> None:
        """Close the socket; this drops and closes descriptors of callers not yet accepted."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)  # noqa: PTH108 - no path object is needed
        self._socket.close()

    def _on_sender(self) -> None:
        try:
            caller, _ = self._socket.accept()
        except OSError:  # the caller is gone, or there are too many open files
            return
        in_thread(self._receive, caller)
        self._senders += 1
        if self._senders == _MAX_SENDERS:
            self._listen_no_more()

    def _receive(self, caller: socket.socket) -> None:
        """In a thread: receive a caller's descriptor, unless it belongs to another user."""
        found = None
        with contextlib.suppress(OSError), caller:
            if peer_uid(caller) == os.geteuid():
                found = self._taken(caller)
        if found is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._deliver, found)

    def _taken(self, caller: socket.socket) -> Found | None:
        caller.settimeout(POST_WITHIN_S)
        # Not `recv_fds`: it loses the flag, and a program started meanwhile would inherit the file.
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
    """Send a descriptor to the mailbox at this path.  Blocking.

    Raises:
        OSError: the mailbox is unreachable, full, or owned by another user.
    """
    if not (path.startswith("/") and _NAME.fullmatch(path.rpartition("/")[2])):
        raise OSError(f"{path[:100]!r} is not a mailbox")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.settimeout(POST_WITHIN_S)
        with short_name(_checked(path)) as name:
            sender.connect(name)
        uid = peer_uid(sender)
        if uid != os.geteuid():
            raise PermissionError(f"the mailbox belongs to user {uid}, not to {os.geteuid()}")
        socket.send_fds(sender, [b"\0"], [descriptor])


def in_thread(function: Callable[..., None], *arguments: object) -> None:
    """Run a function that may block in a thread."""
    threading.Thread(target=function, args=arguments, name="descriptors", daemon=True).start()


def _checked(path: str) -> str:
    """The path, if it fits a message field.

    Raises:
        OSError: it does not fit.
    """
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or not path.isprintable():
        raise OSError("the path is too long, or is not valid text")
    return path
