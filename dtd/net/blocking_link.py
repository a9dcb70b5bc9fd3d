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
from typing import Final

from dtd import __version__
from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Frame, FrameDecoder
from dtd.wire.header import Header

_STAGING_BYTES: Final = 64 * 1024
_PLACING_STAGING_BYTES: Final = 16 * 1024

# Names the memory of an announced payload, or None for memory of the link's own.  It may raise
# ProtocolError.
Place = Callable[[m.Message, int], "memoryview | None"]


class BlockingLink:
    """An open connection of the given role; HELLO and WELCOME are behind it.

    Args:
        address: whom to call.
        role: what for.
        name: who calls, for the other side's log.
        timeout_s: bound on connecting and on the handshake together, and on each send.
        place: where payloads lie; without it each gets memory of its own.
    """

    def __init__(
        self,
        address: Address,
        *,
        role: m.Role,
        name: str,
        timeout_s: float,
        place: Place | None = None,
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
        self._socket = socket.create_connection((address.host, address.port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.send(_hello(role, name))
            self.receive(timeout_s=deadline_s - time.monotonic())
        except BaseException:
            self.close()
            raise

    @property
    def max_payload_bytes(self) -> int:
        """The largest payload that both sides accept."""
        return self._connection.max_payload_bytes

    def send(self, *messages: m.Message) -> None:
        """Send messages, all at once."""
        self._set_timeout(self._send_timeout_s)
        self._socket.sendall(b"".join(map(m.message_bytes, messages)))

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
            raise _told_off(message)
        if isinstance(message, m.Goodbye):
            raise ConnectionResetError(f"the other side left: {message.reason}")
        return message, frame.payload

    def abort(self) -> None:
        """From another thread: whoever sends or receives here gets a ConnectionError at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        self._connection.end()
        self._socket.close()

    def _set_timeout(self, timeout_s: float | None) -> None:
        """Each change is a system call, and most often it is none."""
        if timeout_s != self._socket.gettimeout():
            self._socket.settimeout(timeout_s)

    def _sink(self, header: Header, payload_bytes: int) -> memoryview | None:
        if self._place is None:
            return None
        return self._place(m.decode_message(header), payload_bytes)


def _remaining_s(deadline_s: float, silence_s: float) -> float | None:
    """A socket timeout: None is for ever; never 0, which would mean non-blocking."""
    remaining_s = min(deadline_s - time.monotonic(), silence_s)
    return None if math.isinf(remaining_s) else max(remaining_s, 1e-6)


def _told_off(error: m.Error) -> DtdError:
    """REFUSED is a plain no; with any other code the two sides do not understand each other."""
    if error.code == ErrorCode.REFUSED:
        return RequestRefused(error.message, remedy=error.remedy)
    known = error.code in ErrorCode.__members__.values()
    code = ErrorCode(error.code) if known else ErrorCode.INTERNAL
    return ProtocolError(code, error.message, remedy=error.remedy)


def _hello(role: m.Role, name: str) -> m.Hello:
    return m.Hello(
        role=role.value,
        name=name,
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=__version__,
        max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
    )
