"""A blocking connection that speaks the protocol, for tools that send requests and wait.

It needs neither an event loop nor torch, so a tool starts at once; the daemons use the event loop's
links instead. It raises OSError (TimeoutError when a time limit passed, ConnectionError when the
other side left), ProtocolError, and RequestRefused when the other side refused; `control_client`
and `fetch_client` turn the first two into sentences.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from dtd.address import Address, Endpoint, SocketPath
from dtd.errors import DtdError, ProtocolError
from dtd.net.addresses.attempts import Attempts
from dtd.net.local_socket import call
from dtd.wire import messages as m
from dtd.wire.session import STAGING_BYTES, DataCredential, Received, Session, answer_of, hello

_STAGING_BYTES: Final = 64 * 1024
DEAD_END_S: Final = 1.0
"""Time that an address of a name has while there is another one to try."""

# Provides the memory of an announced payload, or None for memory of the link's own.  It may raise
# ProtocolError.
Place = Callable[[m.Message, int], "memoryview | None"]


# Opens a TCP connection within the given number of seconds, or raises OSError.
Connect = Callable[[Address, float], socket.socket]


def connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    """Open a plain TCP connection; of several addresses of a name, to the first that answers.

    Raises:
        OSError: the host has no address, or the connection to the last one failed.
        TimeoutError: none was open in time.
    """
    deadline_s = time.monotonic() + timeout_s
    *others, last = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for one in others:
        with contextlib.suppress(OSError):
            return _connected(one, min(deadline_s, time.monotonic() + DEAD_END_S), timeout_s)
    return _connected(last, deadline_s, timeout_s)


def _connected(found: tuple[Any, ...], deadline_s: float, timeout_s: float) -> socket.socket:
    """Connect to an address that `getaddrinfo` has found."""
    family, kind, protocol, _, address = found
    made = socket.socket(family, kind, protocol)
    try:
        made.settimeout(_remaining_s(deadline_s, math.inf))
        made.connect(address)
    except BaseException:
        made.close()
        raise
    made.settimeout(timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class BlockingLink:
    """An open connection of the given role, after HELLO and WELCOME.

    Args:
        name: the caller's name, for the other side's log.
        timeout_s: bound on connecting and on the handshake together, and on each send.
        entry: the credential of a data connection.
        place: provides payload memory; without it each payload gets its own.
        coding: the coding of payloads that the caller can undo; 0: none.
        peer_name: the name that the other side must state in WELCOME; empty: any.
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
        connected: Callable[[], object] = lambda: None,
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
        connected()
        try:
            self._shake_hands(role, name, entry, coding)
            welcome, _ = self.receive(timeout_s=deadline_s - time.monotonic())
            assert isinstance(welcome, m.Welcome), "the session accepts nothing else"
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
        return self._session.max_payload_bytes

    @property
    def is_same_host(self) -> bool:
        """Whether both ends of a TCP connection have the same address (`dtd.net.link.Link`)."""
        return bool(self._socket.getsockname()[0] == self._socket.getpeername()[0])

    def send_payload(self, message: m.Message, payload: bytes) -> None:
        self._send(b"".join(self._session.encode(message, payload)))

    def send(self, *messages: m.Message) -> None:
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


# --- several addresses ----------------------------------------------------------------------------

_Outcome = tuple[int, BlockingLink | OSError | DtdError | None]


def first_link(
    to: Sequence[Address], open_at: Callable[..., BlockingLink]
) -> tuple[BlockingLink, Address]:
    """Open a link at the first address that answers, best first; blocking, each in its own thread.

    Args:
        to: the peer's addresses.
        open_at: a `BlockingLink` that lacks only its address.

    Raises:
        OSError, DtdError: as `open_at` at the first address; no other one has answered either.
    """
    if len(to) == 1:
        return open_at(to[0]), to[0]
    race = _Race(to, open_at)
    try:
        return race.run()
    finally:
        race.end()


class _Race:
    """The threads of one `first_link`."""

    def __init__(self, to: Sequence[Address], open_at: Callable[..., BlockingLink]) -> None:
        self._to, self._open_at = to, open_at
        self._attempts = Attempts(len(to))
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> tuple[BlockingLink, Address]:
        failures: dict[int, OSError | DtdError] = {}
        while not self._attempts.over:
            while (index := self._attempts.start(time.monotonic())) is not None:
                name = f"call-{self._to[index]}"
                threading.Thread(target=self._try, args=(index,), name=name, daemon=True).start()
            index, outcome = self._next_outcome()
            if isinstance(outcome, BlockingLink):
                return outcome, self._to[index]
            if outcome is not None:
                self._attempts.failed(index)
                failures[index] = outcome
            elif index >= 0:
                self._attempts.connected(index, time.monotonic())
        raise failures[0]

    def _next_outcome(self) -> _Outcome:
        """Return the next news of an attempt; (-1, None) when it is time for another attempt."""
        wait_s = self._attempts.next_s() - time.monotonic()
        try:
            return self._outcomes.get(timeout=None if math.isinf(wait_s) else max(0.0, wait_s))
        except queue.Empty:
            return -1, None

    def end(self) -> None:
        """Close links that open from now on."""
        with self._lock:
            self._ended = True
        while not self._outcomes.empty():
            _close(self._outcomes.get()[1])

    def _try(self, index: int) -> None:
        outcome: BlockingLink | OSError | DtdError
        connected = functools.partial(self._outcomes.put, (index, None))
        try:
            outcome = self._open_at(self._to[index], connected=connected)
        except (OSError, DtdError) as error:
            outcome = error
        with self._lock:
            if not self._ended:
                self._outcomes.put((index, outcome))
                return
        _close(outcome)


def _close(outcome: object) -> None:
    if isinstance(outcome, BlockingLink):
        outcome.close()
