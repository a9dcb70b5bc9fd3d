"""One blocking connection that speaks the protocol: for tools that ask and wait.

It needs neither an event loop nor torch, so that a tool starts at once; the daemons use the event
loop's links instead.  It raises OSError (TimeoutError when time ran out, ConnectionError when the
other side left), ProtocolError, and RequestRefused when the other side said no;
`control_client` and `fetch_client` turn the first two into sentences.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from typing import Final

from dtd import __version__
from dtd.address import Address
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.wire import messages as m
from dtd.wire.connection import Connection
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, PROTOCOL_VERSION, Frame, FrameDecoder

_STAGING_BYTES: Final = 64 * 1024


class BlockingLink:
    """An open connection of the given role; HELLO and WELCOME are behind it.

    Args:
        address: whom to call.
        role: what for.
        name: who calls, for the other side's log.
        timeout_s: bound on connecting and on the handshake together, and on each send.
    """

    def __init__(self, address: Address, *, role: m.Role, name: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        self._send_timeout_s = timeout_s
        self._connection = Connection(opened=True, role=role)
        self._decoder = FrameDecoder(
            max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES, staging_bytes=_STAGING_BYTES
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

    def send(self, message: m.Message) -> None:
        """Send one message."""
        self._socket.settimeout(self._send_timeout_s)
        self._socket.sendall(m.message_bytes(message))

    def receive(self, *, timeout_s: float) -> tuple[m.Message, memoryview]:
        """The next message and its payload.

        A timeout loses nothing: what has arrived of the message is kept for the next call.

        Raises:
            TimeoutError: it did not arrive whole in time.
            ConnectionError: the other side closed the connection.
            RequestRefused: the other side said no, and will close the connection.
            ProtocolError: the other side broke the protocol, or says that this side did.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._frames:
            self._socket.settimeout(_remaining_s(deadline_s))
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

    def close(self) -> None:
        """Close the connection; harmless when it is closed already."""
        self._connection.end()
        self._socket.close()


def _remaining_s(deadline_s: float) -> float | None:
    """A socket timeout: None is for ever; never 0, which would mean non-blocking."""
    if math.isinf(deadline_s):
        return None
    return max(deadline_s - time.monotonic(), 1e-6)


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
