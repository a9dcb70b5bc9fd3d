"""A blocking connection that speaks the protocol, for tools that send requests and wait.

It needs neither an event loop nor torch, so a tool starts at once; the daemons use the event loop's
links instead. It raises OSError (TimeoutError when a time limit passed, ConnectionError when the
other side left), ProtocolError, and RequestRefused when the other side refused; `control_client`
and `fetch_client` turn the first two into sentences.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dtd.address import Address, Endpoint, SocketPath
from dtd.errors import ProtocolError
from dtd.net.local_socket import call
from dtd.wire import messages as m
from dtd.wire.session import STAGING_BYTES, DataCredential, Received, Session, answer_of, hello

_STAGING_BYTES: Final = 64 * 1024

# Provides the memory of an announced payload, or None for memory of the link's own.  It may raise
# ProtocolError.
Place = Callable[[m.Message, int], "memoryview | None"]


# Opens a TCP connection within the given number of seconds, or raises OSError.
Connect = Callable[[Address, float], socket.socket]


def connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    """Open a plain TCP connection."""
    made = socket.create_connection((address.host, address.port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class BlockingLink:
    """An open connection of the given role, after HELLO and WELCOME.

    Args:
        address: the address to connect to, over TCP or on this host.
        role: the role of the connection.
        name: the caller's name, for the other side's log.
        timeout_s: bound on connecting and on the handshake together, and on each send.
        entry: the credential of a data connection.
        place: provides payload memory; without it each payload gets its own.
        connect: opens the TCP connection.
        coding: the coding of payloads that the caller can undo; 0: none.
        peer_name: the name that the other side must state in WELCOME; empty: any.

    Attributes:
        peer_name: the name that the other side states in WELCOME.
    """

    def __init__(
        self,
        address: Endpoint,
        *,
        role: m.Role,
        name: str,
        timeout_s: float,
        entry: DataCredential | None = None,
        place: Place | None = None,
        connect: Connect = connect_tcp,
        coding: int = 0,
        peer_name: str = "",
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._send_timeout_s = timeout_s
        self._session = Session(
            role=role,
            random_bytes=os.urandom,
            place=lambda message, size: None if place is None else place(message, size),
            staging_bytes=_STAGING_BYTES if place is None else STAGING_BYTES,
            peer_name=peer_name,
        )
        self._received: deque[Received] = deque()
        self._failure: ProtocolError | None = None
        if isinstance(address, SocketPath):
            self._socket = call(address, timeout_s)
        else:
            self._socket = connect(address, timeout_s)
        try:
            self._shake_hands(role, name, entry, coding)
            welcome, _ = self.receive(timeout_s=deadline_s - time.monotonic())
            assert isinstance(welcome, m.Welcome), "the session accepts nothing else"
            self.peer_name = welcome.name
            self._send(self._session.data_to_send())
        except BaseException:
            self.close()
            raise

    def _shake_hands(
        self, role: m.Role, name: str, entry: DataCredential | None, coding: int
    ) -> None:
        if entry is None:
            self._send(self._session.hello(hello(role, name)))
            return
        from ssl import SSLSocket  # a control connection on this host loads no TLS

        from dtd.net.link import private_ends

        connected = self._socket
        ends = private_ends(
            connected.getsockname(),
            connected.getpeername(),
            opened=True,
            encrypted=isinstance(connected, SSLSocket),
        )
        said = replace(entry.hello(role, name), coding=coding)
        self._send(self._session.hello(said, secret=entry.secret, ends=ends))

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that both sides accept."""
        return self._session.max_payload_bytes

    @property
    def is_same_host(self) -> bool:
        """Whether both ends of a TCP connection have the same address (`dtd.net.link.Link`)."""
        return bool(self._socket.getsockname()[0] == self._socket.getpeername()[0])

    def send_payload(self, message: m.Message, payload: bytes) -> None:
        """Send a message with its payload."""
        self._send(b"".join(self._session.encode(message, payload)))

    def send(self, *messages: m.Message) -> None:
        """Send messages, all at once."""
        self._send(b"".join(self._session.encode(message)[0] for message in messages))

    def _send(self, data: bytes) -> None:
        if data:
            self._set_timeout(self._send_timeout_s)
            self._socket.sendall(data)

    def receive(self, *, timeout_s: float = math.inf, silence_s: float = math.inf) -> Received:
        """The next message and its payload.

        A timeout loses nothing: what has arrived of the message is kept for the next call.

        Args:
            timeout_s: bound on the whole message.
            silence_s: bound on the time without a single byte.

        Raises:
            TimeoutError: the message was not complete in time, or no byte arrived.
            ConnectionError: the other side closed the connection.
            RequestRefused: the other side refused, and will close the connection.
            ProtocolError: the other side violated the protocol, or reports that this side did.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._received:
            if self._failure is not None:
                raise self._failure
            self._set_timeout(_remaining_s(deadline_s, silence_s))
            count = self._socket.recv_into(self._session.next_buffer())
            if not count:
                self._session.end()
                raise ConnectionResetError("the other side closed the connection")
            try:
                self._received.extend(self._session.received(count))
            except ProtocolError as error:  # raised after the preceding messages have been read
                self._failure = error
        received = self._received.popleft()
        if isinstance(received.message, m.Error):
            raise answer_of(received.message)
        if isinstance(received.message, m.Goodbye):
            raise ConnectionResetError(f"the other side left: {received.message.reason}")
        return received

    def abort(self) -> None:
        """From another thread: end pending sends and receives with a ConnectionError at once."""
        with contextlib.suppress(OSError):
            # Not the method of a TLS socket, which would turn the reader's socket into a plain one.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; has no effect when it is closed already."""
        self._session.close()
        self._socket.close()

    def _set_timeout(self, timeout_s: float | None) -> None:
        """Change the socket's timeout only when it differs: each change is a system call."""
        if timeout_s != self._socket.gettimeout():
            self._socket.settimeout(timeout_s)


def _remaining_s(deadline_s: float, silence_s: float) -> float | None:
    """A socket timeout: None means no limit; never 0, which would mean non-blocking."""
    remaining_s = min(deadline_s - time.monotonic(), silence_s)
    return None if math.isinf(remaining_s) else max(remaining_s, 1e-6)
