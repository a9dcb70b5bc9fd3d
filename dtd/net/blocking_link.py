"""One blocking connection that speaks the protocol: for tools that ask and wait.

It needs neither an event loop nor torch, so that a tool starts at once; the daemons use the event
loop's links instead.  It raises OSError (TimeoutError when time ran out, ConnectionError when the
other side left), ProtocolError, and RequestRefused when the other side said no;
`control_client` and `fetch_client` turn the first two into sentences.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dtd.address import Address, Endpoint, SocketPath
from dtd.net.local_socket import call
from dtd.net.told_off import answered_with
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, Frame, FrameDecoder
from dtd.wire.greeting import hello
from dtd.wire.header import Header
from dtd.wire.tags import CHECKSUM, UNDECIDED, Tag

if TYPE_CHECKING:  # a control connection loads neither keys nor TLS
    from dtd.net.handshake import Opening, Pass

_STAGING_BYTES: Final = 64 * 1024
_PLACING_STAGING_BYTES: Final = 16 * 1024

# Names the memory of an announced payload, or None for memory of the link's own.  It may raise
# ProtocolError.
Place = Callable[[m.Message, int], "memoryview | None"]


# Makes a TCP connection within so many seconds, or raises OSError.
Connect = Callable[[Address, float], socket.socket]


def connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    """A connection without anything special about it."""
    made = socket.create_connection((address.host, address.port), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class BlockingLink:
    """An open connection of the given role; HELLO and WELCOME are behind it.

    Args:
        address: whom to call: over TCP, or on this host.
        role: what for.
        name: who calls, for the other side's log.
        timeout_s: bound on connecting and on the handshake together, and on each send.
        entry: what opens a data connection.
        place: where payloads lie; without it each gets memory of its own.
        connect: makes the TCP connection.
    """

    def __init__(
        self,
        address: Endpoint,
        *,
        role: m.Role,
        name: str,
        timeout_s: float,
        entry: Pass | None = None,
        place: Place | None = None,
        connect: Connect = connect_tcp,
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._send_timeout_s = timeout_s
        self._connection = Connection(opened=True, role=role)
        self._place = place
        self._decoder = FrameDecoder(
            self._sink,
            max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
            staging_bytes=_STAGING_BYTES if place is None else _PLACING_STAGING_BYTES,
        )
        self._frames: deque[Frame] = deque()
        self._tag: Tag = CHECKSUM
        self._opening: Opening | None = None
        if isinstance(address, SocketPath):
            self._socket = call(address, timeout_s)
        else:
            self._socket = connect(address, timeout_s)
        try:
            self.send(hello(role, name) if entry is None else self._hello(role, name, entry))
            self.receive(timeout_s=deadline_s - time.monotonic())
            if entry is not None:
                self.send(m.Prove())
        except BaseException:
            self.close()
            raise

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that both sides accept."""
        return self._connection.max_payload_bytes

    def send_payload(self, message: m.Message, payload: bytes) -> None:
        """Send a message with its payload."""
        self._set_timeout(self._send_timeout_s)
        self._socket.sendall(m.message_bytes(message, payload, self._tag))

    def send(self, *messages: m.Message) -> None:
        """Send messages, all at once."""
        self._set_timeout(self._send_timeout_s)
        frames = [m.message_bytes(message, tag=self._tag) for message in messages]
        self._socket.sendall(b"".join(frames))

    def receive(
        self, *, timeout_s: float = math.inf, silence_s: float = math.inf
    ) -> tuple[m.Message, memoryview]:
        """The next message and its payload.

        A timeout loses nothing: what has arrived of the message is kept for the next call.

        Args:
            timeout_s: bound on the whole message.
            silence_s: bound on the time without a single byte.

        Raises:
            TimeoutError: it did not arrive whole in time, or not a byte did.
            ConnectionError: the other side closed the connection.
            RequestRefused: the other side said no, and will close the connection.
            ProtocolError: the other side broke the protocol, or says that this side did.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._frames:
            self._set_timeout(_remaining_s(deadline_s, silence_s))
            count = self._socket.recv_into(self._decoder.next_buffer())
            if not count:
                self._decoder.end()
                raise ConnectionResetError("the other side closed the connection")
            self._frames.extend(self._decoder.received(count))
        frame = self._frames.popleft()
        message = m.decode_message(frame.header)
        self._connection.receive(message, len(frame.payload))
        if isinstance(message, m.Error):
            raise answered_with(message)
        if isinstance(message, m.Goodbye):
            raise ConnectionResetError(f"the other side left: {message.reason}")
        return message, frame.payload

    def abort(self) -> None:
        """From another thread: whoever sends or receives here gets a ConnectionError at once."""
        with contextlib.suppress(OSError):
            # Not that of a TLS socket, which would turn the reader's socket into a plain one.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        self._connection.end()
        self._socket.close()

    def _set_timeout(self, timeout_s: float | None) -> None:
        """Each change is a system call, and most often it is none."""
        if timeout_s != self._socket.gettimeout():
            self._socket.settimeout(timeout_s)

    def _hello(self, role: m.Role, name: str, entry: Pass) -> m.Hello:
        from ssl import SSLSocket

        from dtd.net.handshake import Opening, is_private

        encrypted = isinstance(self._socket, SSLSocket)
        private = encrypted or is_private(self._socket.getpeername()[0])
        self._opening = Opening(entry.hello(role, name), entry.secret, private=private)
        self._decoder.tag = UNDECIDED
        return self._opening.hello

    def _sink(self, header: Header, payload_bytes: int) -> memoryview | None:
        opening, self._opening = self._opening, None
        if opening is not None:  # the very first frame
            self._take_keys(opening, m.decode_message(header))
            return None
        if self._place is None:
            return None
        return self._place(m.decode_message(header), payload_bytes)

    def _take_keys(self, opening: Opening, answer: m.Message) -> None:
        if isinstance(answer, m.Welcome):
            keys = opening.keys(answer)
            self._tag, self._decoder.tag = keys.opener, keys.acceptor


def _remaining_s(deadline_s: float, silence_s: float) -> float | None:
    """A socket timeout: None is for ever; never 0, which would mean non-blocking."""
    remaining_s = min(deadline_s - time.monotonic(), silence_s)
    return None if math.isinf(remaining_s) else max(remaining_s, 1e-6)
