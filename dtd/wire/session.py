"""One side of one connection, from first byte to last: handshake, limits, tags, messages.

Bytes go in, messages and bytes come out; no socket, clock or randomness.  Every shell drives this
state machine (the event loop's links, the blocking link, tests), so all of them agree on which
messages are allowed in which state, and fail at the same byte with the same error (protocol.md,
"Connections").

    opening side:    hello() -->  AWAIT_WELCOME --WELCOME-->  OPEN --ERROR/GOODBYE--> CLOSED
    accepting side:  AWAIT_HELLO --HELLO--> DECIDING --welcome()-->  OPEN --ERROR/GOODBYE--> CLOSED

On a data port the two sides share a secret: welcome() leads the accepting side to AWAIT_PROVE, and
only PROVE to OPEN; the opening side sends PROVE as soon as WELCOME has arrived.  The nonces in
HELLO and WELCOME turn that secret into the tags of both directions (`dtd.wire.keyed_tag`).

Usage: receive into `next_buffer()`, iterate over `received(count)`, send what `hello`, `welcome`,
`encode` and `data_to_send` return, in that order.  What a message means is up to its receiver.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self

from dtd import __version__
from dtd.errors import DtdError, ErrorCode, ProtocolError, RequestRefused
from dtd.text.shown import escaped
from dtd.wire import messages as m
from dtd.wire.fields import bad_field
from dtd.wire.frames import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    LARGEST_MAX_PAYLOAD_BYTES,
    NO_FRAMES,
    PROTOCOL_VERSION,
    Frame,
    FrameDecoder,
    Header,
    Hold,
    encode_frame,
    frame_bytes,
)
from dtd.wire.messages.catalogue import acceptor_numbers, opener_numbers
from dtd.wire.tags import CHECKSUM, FLAG_GCM, FLAG_XXH3, TAG_FLAGS, UNDECIDED, Tag

NONCE_BYTES: Final = 16
DATA_ROLES: Final = frozenset({m.Role.RING, m.Role.LIFELINE, m.Role.FETCH, m.Role.STAR})
MAX_ERROR_CHARACTERS: Final = 2000
STAGING_BYTES: Final = 16 * 1024

_IN_ONE_PIECE_BYTES: Final = 4096
"""Up to this size copying a payload is faster than sending three separate pieces."""

_ERROR_CODES: Final = frozenset(ErrorCode)
_REMEDY: Final = "install the same dtd version on both hosts"

OF_THE_SESSION: Final = frozenset({m.Hello, m.Welcome, m.Prove, m.Error, m.Goodbye})
"""Messages that change the session itself; all others concern only its owner."""

# Called with a message whose header has been accepted and the length of its payload; returns where
# the payload goes, HOLD, or None for memory of the session's own.  It may raise ProtocolError.
Place = Callable[[m.Message, int], "memoryview | Hold | None"]


class State(enum.Enum):
    """The state of a connection."""

    AWAIT_HELLO = "await hello"
    DECIDING = "deciding"
    AWAIT_WELCOME = "await welcome"
    AWAIT_PROVE = "await prove"
    OPEN = "open"
    CLOSED = "closed"


class Received(NamedTuple):
    """A complete message, with the payload where it was placed."""

    message: m.Message
    payload: memoryview


class Session:
    """One side of one connection.

    Args:
        role: the opening side's role; None: this side accepts, and learns the role from HELLO.
        accepts: the roles that an accepting side serves.
        random_bytes: generates a nonce of the given number of bytes.
        place: provides the memory of payloads once the connection is open.
        staging_bytes: read-ahead; small where payloads are large.
        peer_name: the name that the accepting side must state in WELCOME; empty: any.

    Attributes:
        opened: this side opened the connection.
        state: its state.
        max_payload_bytes: the largest payload that the other side accepts; known once its HELLO or
            WELCOME has arrived.
        knows_peer: the sender is an authenticated peer; until then it may be any process.
            (Both sides of a control connection check the other one before they send HELLO or
            WELCOME.)
    """

    def __init__(
        self,
        *,
        role: m.Role | None = None,
        accepts: frozenset[m.Role] = frozenset(),
        random_bytes: Callable[[int], bytes],
        place: Place = lambda _message, _payload_bytes: None,
        staging_bytes: int = STAGING_BYTES,
        peer_name: str = "",
    ) -> None:
        self.opened = role is not None
        self.role = role
        self.state = State.AWAIT_WELCOME if self.opened else State.AWAIT_HELLO
        self.max_payload_bytes = DEFAULT_MAX_PAYLOAD_BYTES
        self.knows_peer = False
        self._accepts = accepts
        self._peer_name = peer_name
        self._random_bytes = random_bytes
        self._owner_place = place
        self._decoder = FrameDecoder(self._place, staging_bytes=staging_bytes)
        self._tag: Tag = CHECKSUM
        self._allowed = self._numbers_from_peer()
        self._message: m.Message | None = None
        self._hello: m.Hello | None = None
        self._hello_header = b""
        self._secret = b""
        self._owes_proof = False

    # --- sending -----------------------------------------------------------------------------

    def hello(self, message: m.Hello, *, secret: bytes = b"", ends: bytes = b"") -> bytes:
        """The first bytes of the opening side.

        Args:
            message: the HELLO; on a data connection a nonce, the weakest allowed tag and the ends
                are added.
            secret: on a data connection, the shared secret.
            ends: names this channel, which no third party can reach, as the other side does; empty:
                a third party may be between the sides.
        """
        assert self.state is State.AWAIT_WELCOME
        self._decoder.max_payload_bytes = message.max_payload_bytes
        self.knows_peer = not secret
        if secret:
            nonce = self._random_bytes(NONCE_BYTES)
            tag = FLAG_XXH3 if ends else FLAG_GCM
            message = replace(message, nonce=nonce, tag=tag, ends=ends)
            self._secret = secret
            self._decoder.tag = UNDECIDED
        self._hello, self._hello_header = message, m.encode_header(message)
        return frame_bytes(self._hello_header, b"", self._tag)

    def welcome(self, message: m.Welcome, *, secret: bytes = b"", ends: bytes = b"") -> bytes:
        """The bytes with which the accepting side admits the other one.

        Empty when the connection has ended meanwhile.  Arguments as for `hello`.
        """
        if self.state is State.CLOSED:
            return b""
        assert self.state is State.DECIDING
        assert self._hello is not None
        self._decoder.max_payload_bytes = message.max_payload_bytes
        self.state = State.OPEN
        self.knows_peer = self.role not in DATA_ROLES
        if not self.knows_peer:
            self.state = State.AWAIT_PROVE
            is_private = ends and ends == self._hello.ends
            tag = max(self._hello.tag, FLAG_XXH3 if is_private else FLAG_GCM)
            message = replace(message, nonce=self._random_bytes(NONCE_BYTES), tag=tag)
            self._decoder.tag, self._tag = self._tags(secret, message)
        return frame_bytes(m.encode_header(message), b"", self._tag)

    def encode(
        self, message: m.Message, payload: bytes | memoryview = b""
    ) -> tuple[bytes | memoryview, ...]:
        """The pieces of a frame, in order; a large payload is one of them, not copied.

        Raises:
            LocalProtocolError: the receiver would reject a field's value.
        """
        header = m.encode_header(message)
        if len(payload) <= _IN_ONE_PIECE_BYTES:
            return (frame_bytes(header, payload, self._tag),)
        head, tag = encode_frame(header, payload, self._tag)
        return head, payload, tag

    def data_to_send(self) -> bytes:
        """The bytes that this side must send in answer to received ones; usually none."""
        if not self._owes_proof:
            return b""
        self._owes_proof = False
        return frame_bytes(m.encode_header(m.Prove()), b"", self._tag)

    def close(self) -> None:
        """Record that either side closed the connection: later bytes are ignored."""
        self.state = State.CLOSED

    # --- receiving ---------------------------------------------------------------------------

    def next_buffer(self) -> memoryview:
        """Writable memory for the next bytes of the stream; never empty unless a frame is held."""
        return self._decoder.next_buffer()

    def received(self, count: int) -> Iterator[Received]:
        """Account for `count` bytes written into `next_buffer()`; yield what they complete.

        Nothing is yielded after the other side's ERROR or GOODBYE.

        Raises:
            ProtocolError: the bytes violate the protocol; the session is then closed.
        """
        if self.state is State.CLOSED:
            return iter(())
        frames = self._decoder.received(count)
        return iter(()) if frames is NO_FRAMES else self._messages(frames)

    def feed(self, data: bytes) -> Iterator[Received]:
        """Yield the messages in bytes already in memory, none of which may be held."""
        if self.state is not State.CLOSED:
            yield from self._messages(self._decoder.feed(data))

    def resume(self) -> Iterator[Received]:
        """Ask again for the memory of the held message, and continue as `received` does."""
        return self._messages(self._decoder.resume())

    def end(self) -> None:
        """The stream ended.

        Raises:
            ProtocolError: TRUNCATED when it ended inside a frame.
        """
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self._decoder.end()

    @property
    def tag(self) -> Tag:
        """The tag of the next frame that this side sends."""
        return self._tag

    @property
    def held(self) -> bool:
        """Whether a message waits for memory: receive nothing before `resume`."""
        return self._decoder.held

    def _messages(self, frames: Iterator[Frame]) -> Iterator[Received]:
        try:
            for frame in frames:
                message, self._message = self._message, None
                assert message is not None
                if type(message) in OF_THE_SESSION:
                    self._advance(message)
                yield Received(message, frame.payload)
                if self.state is State.CLOSED:
                    return
        except ProtocolError:
            self.state = State.CLOSED
            raise

    def _place(self, header: Header, payload_bytes: int) -> memoryview | Hold | None:
        """Check that a message is allowed now, and return where its payload goes."""
        message = self._message
        if message is None:  # otherwise it was held, and has been checked
            message = m.decode_message(header)
            if self._secret and isinstance(message, m.Welcome):
                self._take_tags(message)  # an ERROR in reply is sealed with them, too
            self._check(message)
            limit = m.kind_of(type(message)).max_payload_bytes
            if payload_bytes > limit:
                raise ProtocolError(
                    ErrorCode.BAD_PAYLOAD,
                    f"{_name(message)}: payload of {payload_bytes} bytes > {limit}",
                )
            self._message = message
        if type(message) in OF_THE_SESSION:
            return None
        return self._owner_place(message, payload_bytes)

    def _check(self, message: m.Message) -> None:
        """Check that the other side may send this message now."""
        state = self.state
        if state is State.OPEN and m.kind_of(type(message)).number in self._allowed:
            return
        if isinstance(message, m.Error):
            return
        if state is State.AWAIT_HELLO and isinstance(message, m.Hello):
            self._check_hello(message)
        elif state is State.AWAIT_WELCOME and isinstance(message, m.Welcome):
            self._check_welcome(message)
        elif not (state is State.AWAIT_PROVE and isinstance(message, m.Prove)):
            raise ProtocolError(
                ErrorCode.WRONG_STATE,
                f"{_name(message)} is not allowed in state {state.value!r}"
                f" of a {self.role.value if self.role else 'new'} connection",
            )

    def _advance(self, message: m.Message) -> None:
        """Handle a complete message of the session itself."""
        if isinstance(message, m.Hello):
            self.role = m.Role(message.role)
            self._allowed = self._numbers_from_peer()
            self._hello, self._hello_header = message, self._decoder.header_bytes
            self._limit(message.max_payload_bytes)
            self.state = State.DECIDING
        elif isinstance(message, m.Welcome):
            self._limit(message.max_payload_bytes)
            self.state = State.OPEN
            self.knows_peer = True
            self._owes_proof = bool(self._secret)
        else:
            is_proof = isinstance(message, m.Prove)
            self.knows_peer = self.knows_peer or is_proof
            self.state = State.OPEN if is_proof else State.CLOSED

    def _numbers_from_peer(self) -> frozenset[int]:
        """Numbers of the messages that the other side may send in OPEN, once the role is known."""
        if self.role is None:
            return frozenset()
        return acceptor_numbers(self.role) if self.opened else opener_numbers(self.role)

    def _check_hello(self, hello: m.Hello) -> None:
        try:
            role = m.Role(hello.role)
        except ValueError:
            raise bad_field("HELLO.role", f"{hello.role!r} is not known") from None
        self.role = role
        if role not in self._accepts:
            raise ProtocolError(
                ErrorCode.WRONG_STATE,
                f"role {role.value!r} is not served here",
                remedy="check the port: a worker's data port is not the coordinator's",
            )
        self._check_nonce("HELLO", hello)
        if not hello.protocol_min <= PROTOCOL_VERSION <= hello.protocol_max:
            raise ProtocolError(
                ErrorCode.BAD_VERSION,
                f"{hello.name} speaks protocol {hello.protocol_min}..{hello.protocol_max}"
                f" (dtd {hello.version}), this side {PROTOCOL_VERSION}",
                remedy=_REMEDY,
            )

    def _check_welcome(self, welcome: m.Welcome) -> None:
        if welcome.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                ErrorCode.BAD_VERSION,
                f"{welcome.name} chose protocol {welcome.protocol}, not {PROTOCOL_VERSION}",
                remedy=_REMEDY,
            )
        self._check_nonce("WELCOME", welcome)
        least = self._hello.tag if self._hello is not None else FLAG_XXH3
        if self._secret and welcome.tag < least:
            raise bad_field("WELCOME.tag", f"{welcome.tag} is less than {least}")
        if self._peer_name and welcome.name != self._peer_name:
            said = f"{escaped(welcome.name)} answers, not {self._peer_name}"
            raise ProtocolError(ErrorCode.WRONG_SOURCE, said)

    def _check_nonce(self, where: str, message: m.Hello | m.Welcome) -> None:
        """Check that there is a nonce if and only if there is a key."""
        nonce_bytes = NONCE_BYTES if self.role in DATA_ROLES else 0
        if len(message.nonce) != nonce_bytes:
            raise bad_field(f"{where}.nonce", f"{len(message.nonce)} octets, not {nonce_bytes}")
        if message.tag not in TAG_FLAGS:
            raise bad_field(f"{where}.tag", f"{message.tag} is not known")

    def _limit(self, stated_bytes: int) -> None:
        self.max_payload_bytes = min(stated_bytes, LARGEST_MAX_PAYLOAD_BYTES)

    def _take_tags(self, welcome: m.Welcome) -> None:
        """Derive the keyed tags from WELCOME, the first frame that has one."""
        if self.state is State.AWAIT_WELCOME:
            self._tag, self._decoder.tag = self._tags(self._secret, welcome)

    def _tags(self, secret: bytes, welcome: m.Welcome) -> tuple[Tag, Tag]:
        """The tags of the opening side's frames and of the accepting side's frames."""
        from dtd.wire.keyed_tag import keyed_tags  # a control connection loads no ciphers

        assert self._hello is not None
        return keyed_tags(secret, self._hello, self._hello_header, welcome)


def error_of(error: m.Error) -> ProtocolError:
    """The other side's ERROR as an error of this side.

    The text goes into logs, status lines and error messages of this side: so it is one bounded text
    without any further meaning.
    """
    code = ErrorCode(error.code) if error.code in _ERROR_CODES else ErrorCode.INTERNAL
    return ProtocolError(code, _said(error.message), remedy=_said(error.remedy))


def without_words(error: ProtocolError) -> ProtocolError:
    """Return a handshake's error for operators, without its words: a stranger may send them."""
    remedy = _REMEDY if error.code is ErrorCode.BAD_VERSION else ""
    return ProtocolError(error.code, f"the handshake failed: {error.code.name}", remedy=remedy)


def answer_of(error: m.Error) -> DtdError:
    """Return the error of `error_of`, with REFUSED as a refusal instead of a protocol error.

    So is INTERNAL: the other side understood the request and failed to perform it.
    """
    told = error_of(error)
    if error.code in (ErrorCode.REFUSED, ErrorCode.INTERNAL):
        return RequestRefused(told.message, remedy=told.remedy)
    return told


def _said(text: str) -> str:
    return escaped(text[:MAX_ERROR_CHARACTERS])


def _name(message: m.Message) -> str:
    return m.message_name(type(message))


# --- the first messages, and the credential of a data connection --------------------------------


def hello(
    role: m.Role, name: str, *, max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES
) -> m.Hello:
    """The first message of the side that opens the connection.

    Args:
        role: purpose of the connection.
        name: the caller's name.
        max_payload_bytes: the largest payload that this side accepts.
    """
    return m.Hello(
        role=role.value,
        name=name,
        protocol_min=PROTOCOL_VERSION,
        protocol_max=PROTOCOL_VERSION,
        version=__version__,
        max_payload_bytes=max_payload_bytes,
    )


def welcome(name: str, *, max_payload_bytes: int = LARGEST_MAX_PAYLOAD_BYTES) -> m.Welcome:
    """The answer of the side that accepts the connection.

    Args:
        name: the name of the answering process.
        max_payload_bytes: the largest payload that this side accepts.
    """
    return m.Welcome(
        protocol=PROTOCOL_VERSION,
        version=__version__,
        name=name,
        max_payload_bytes=max_payload_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCredential:
    """The credential of a data connection: a secret, and the fields of HELLO that identify it.

    Attributes:
        secret: a generation's secret, or a ticket's key.
        generation: with the next two, the roster whose secret it is.
        roster_id: that generation's roster.
        rank: the opening side's rank in it.
        scope: the resource that a ticket covers; empty for a generation's secret.
        expires_s: when the ticket expires, on the monotonic clock of the worker that is called.
    """

    secret: bytes = field(repr=False)
    generation: int = 0
    roster_id: int = 0
    rank: int = 0
    scope: str = ""
    expires_s: int = 0

    @classmethod
    def of(cls, assign: m.Assign) -> Self:
        """The credential of a member of a generation."""
        return cls(
            secret=assign.secret,
            generation=assign.generation,
            roster_id=assign.roster_id,
            rank=assign.rank,
        )

    def hello(self, role: m.Role, name: str) -> m.Hello:
        """The HELLO that states this credential."""
        return replace(
            hello(role, name),
            generation=self.generation,
            roster_id=self.roster_id,
            rank=self.rank,
            scope=self.scope,
            expires_s=self.expires_s,
        )
