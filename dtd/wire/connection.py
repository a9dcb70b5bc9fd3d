"""The life of one connection: HELLO, WELCOME, then the messages its role allows, then the end.

Pure state machine (protocol.md, "Connections").  Bytes go through `dtd.wire.frames`; this file says
which message may come from which side in which state, and agrees on version and limits.

    opening side:    connect --HELLO-->  AWAIT_WELCOME --WELCOME-->  OPEN --ERROR/GOODBYE--> CLOSED
    accepting side:  AWAIT_HELLO --HELLO--> DECIDING --WELCOME-->  OPEN --ERROR/GOODBYE--> CLOSED

On a data port the two sides share a secret: WELCOME leads the accepting side to AWAIT_PROVE, and
only PROVE to OPEN; the opening side sends PROVE as soon as WELCOME is here.
"""

from __future__ import annotations

import enum
from typing import Final

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire import messages as m
from dtd.wire.fields import bad_field
from dtd.wire.frames import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    LARGEST_MAX_PAYLOAD_BYTES,
    PROTOCOL_VERSION,
)
from dtd.wire.messages.catalogue import acceptor_numbers, opener_numbers
from dtd.wire.tags import TAG_FLAGS

NONCE_BYTES: Final = 16


class State(enum.Enum):
    """Where a connection stands."""

    AWAIT_HELLO = "await hello"
    DECIDING = "deciding"
    AWAIT_WELCOME = "await welcome"
    AWAIT_PROVE = "await prove"
    OPEN = "open"
    CLOSED = "closed"


DATA_ROLES: Final = frozenset({m.Role.RING, m.Role.LIFELINE, m.Role.FETCH})


class Connection:
    """One side of one connection.

    Args:
        opened: this side opened it.
        role: known from the start to the opener; the acceptor learns it from HELLO.
        accepts: the roles that the accepting side serves.

    Attributes:
        max_payload_bytes: the largest payload that the other side takes; known once its HELLO or
            WELCOME is here.
    """

    def __init__(
        self, *, opened: bool, role: m.Role | None = None, accepts: frozenset[m.Role] = frozenset()
    ) -> None:
        self.opened = opened
        self.role = role
        self.state = State.AWAIT_WELCOME if opened else State.AWAIT_HELLO
        self.max_payload_bytes = DEFAULT_MAX_PAYLOAD_BYTES
        self._accepts = accepts
        self._allowed = self._from_peer(role)

    def receive(self, message: m.Message, payload_bytes: int = 0) -> None:
        """Account for a message from the other side, and for the length of its payload.

        Raises:
            ProtocolError: WRONG_STATE, BAD_VERSION, BAD_FIELD or BAD_PAYLOAD; the connection is
                then closed.
        """
        try:
            self._check(message)
            self._check_payload(message, payload_bytes)
        except ProtocolError:
            self.state = State.CLOSED
            raise
        if isinstance(message, m.Error | m.Goodbye):
            self.state = State.CLOSED

    def _check(self, message: m.Message) -> None:
        if self.state is State.OPEN and m.kind_of(type(message)).number in self._allowed:
            return
        if isinstance(message, m.Error) and self.state is not State.CLOSED:
            return
        if self.state is State.AWAIT_HELLO and isinstance(message, m.Hello):
            self._check_hello(message)
            self.state = State.DECIDING
        elif self.state is State.AWAIT_WELCOME and isinstance(message, m.Welcome):
            self._check_welcome(message)
        elif self.state is State.AWAIT_PROVE and isinstance(message, m.Prove):
            self.state = State.OPEN
        else:
            raise ProtocolError(
                ErrorCode.WRONG_STATE,
                f"{m.message_name(type(message))} is not allowed in state {self.state.value!r}"
                f" of a {self.role.value if self.role else 'new'} connection",
            )

    def _check_payload(self, message: m.Message, payload_bytes: int) -> None:
        limit = m.kind_of(type(message)).max_payload_bytes
        if payload_bytes > limit:
            raise ProtocolError(
                ErrorCode.BAD_PAYLOAD,
                f"{m.message_name(type(message))}: payload of {payload_bytes} bytes > {limit}",
            )

    def _from_peer(self, role: m.Role | None) -> frozenset[int]:
        """Numbers of what the other side may send in OPEN, once the role is known."""
        if role is None:
            return frozenset()
        return acceptor_numbers(role) if self.opened else opener_numbers(role)

    def _check_hello(self, hello: m.Hello) -> None:
        try:
            self.role = m.Role(hello.role)
        except ValueError:
            raise ProtocolError(
                ErrorCode.BAD_FIELD, f"HELLO.role: {hello.role!r} is not known"
            ) from None
        if self.role not in self._accepts:
            raise ProtocolError(
                ErrorCode.WRONG_STATE,
                f"role {self.role.value!r} is not served here",
                remedy="check the port: a worker's data port is not the coordinator's",
            )
        self._allowed = self._from_peer(self.role)
        self._check_keys("HELLO", hello)
        if not hello.protocol_min <= PROTOCOL_VERSION <= hello.protocol_max:
            raise ProtocolError(
                ErrorCode.BAD_VERSION,
                f"{hello.name} speaks protocol {hello.protocol_min}..{hello.protocol_max}"
                f" (dtd {hello.version}), this side {PROTOCOL_VERSION}",
                remedy="install the same dtd version on both hosts",
            )
        self._limit(hello.max_payload_bytes)

    def _check_welcome(self, welcome: m.Welcome) -> None:
        if welcome.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                ErrorCode.BAD_VERSION,
                f"{welcome.name} chose protocol {welcome.protocol}, not {PROTOCOL_VERSION}",
                remedy="install the same dtd version on both hosts",
            )
        self._check_keys("WELCOME", welcome)
        self._limit(welcome.max_payload_bytes)
        self.state = State.OPEN

    def _check_keys(self, where: str, message: m.Hello | m.Welcome) -> None:
        """A nonce where there is a key, and none elsewhere."""
        nonce_bytes = NONCE_BYTES if self.role in DATA_ROLES else 0
        if len(message.nonce) != nonce_bytes:
            raise bad_field(f"{where}.nonce", f"{len(message.nonce)} octets, not {nonce_bytes}")
        if message.tag not in TAG_FLAGS:
            raise bad_field(f"{where}.tag", f"{message.tag} is not known")

    def _limit(self, stated_bytes: int) -> None:
        self.max_payload_bytes = min(stated_bytes, LARGEST_MAX_PAYLOAD_BYTES)

    def accept(self) -> None:
        """The accepting side sends WELCOME, unless the connection ended meanwhile."""
        assert not self.opened
        assert self.state in (State.DECIDING, State.CLOSED)
        if self.state is State.DECIDING:
            self.state = State.AWAIT_PROVE if self.role in DATA_ROLES else State.OPEN

    def end(self) -> None:
        """The connection was closed, by either side."""
        self.state = State.CLOSED
