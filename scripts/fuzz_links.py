"""Both ends of every connection, without a socket: under any messages of a hostile other side.

A `Link` gets a transport that only remembers.  Before authentication the fuzzer's frames are the
first that come; after it, the handshake has been made with the right key, as by a thief of a
credential.  In any case a link delivers valid messages that its state allows, or closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgpack

from dtd.net.link import Link
from dtd.wire import fields
from dtd.wire import messages as m
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, FrameDecoder, Hold, frame_bytes
from dtd.wire.session import DATA_ROLES, DataCredential, Session, State, hello, welcome
from dtd.wire.tags import CHECKSUM, Tag

# --- a fuzzer's bytes as hostile frames -----------------------------------------------------------


MAX_PIECE_BYTES: Final = 512
MAX_FRAMES: Final = 16
_TYPES: Final = sorted(m.message_types().items())
_EDGES: Final = (0, 1, 255, 256, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1)
_ODD: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), float("inf"), "", "x" * 300, b""),
    *(b"y" * 65, [], [[]], {}, {"a": {"b": {"c": {}}}}, ["x"] * 70),
)


class Reader:
    """Takes a fuzzer's bytes from front to back; when they are used up, all is zero."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        self._at += len(piece)
        return piece

    def number(self, below: int) -> int:
        """From 0 to below - 1."""
        return int.from_bytes(self.take(2)) % below

    def choice(self, options: tuple[Any, ...] | list[Any]) -> Any:
        return options[self.number(len(options))]


def frames(data: bytes, tag: Tag) -> list[bytes]:
    """The frames that these bytes stand for."""
    reader = Reader(data)
    made: list[bytes] = []
    while reader.left and len(made) < MAX_FRAMES:
        made.append(_frame(reader, tag))
    return made


def _frame(reader: Reader, tag: Tag) -> bytes:
    kind = reader.number(8)
    if kind == 0:
        return reader.take(reader.number(MAX_PIECE_BYTES))
    if kind == 1:
        return frame_bytes(reader.take(reader.number(MAX_PIECE_BYTES)), b"", tag)
    number, message_type = reader.choice(_TYPES)
    header = {m.TYPE_KEY: number, **values_of(message_type, reader)}
    payload = bytes(reader.number(64)) if kind == 2 else b""
    sealed = frame_bytes(packed(header), payload, tag)
    return _damaged(sealed, reader) if kind == 3 else sealed


def _damaged(frame: bytes, reader: Reader) -> bytes:
    """One byte of it differs."""
    at = reader.number(len(frame))
    return frame[:at] + bytes([frame[at] ^ (1 + reader.number(255))]) + frame[at + 1 :]


def packed(header: dict[str, Any]) -> bytes:
    """A header's bytes, valid or not."""
    made: bytes = msgpack.packb(header, unicode_errors="replace")
    return made


def values_of(record: type[Any], reader: Reader, *, odd: bool = True) -> dict[str, Any]:
    """Values for the fields of a record.

    Args:
        record: a message or a part of one.
        reader: decides.
        odd: one in so many does not fit, or is left out.
    """
    values: dict[str, Any] = {}
    for name, kind, _check, required in fields.layout(record):
        turn = reader.number(64)
        if odd and turn == 0:
            values[name] = reader.choice(_ODD)
        elif required or turn > 16:
            values[name] = _value(kind, reader, odd=odd)
    return values


def _value(kind: str, reader: Reader, *, odd: bool) -> Any:
    if kind.startswith("list<="):
        record = getattr(m, kind.partition(" of ")[2])
        return [values_of(record, reader, odd=odd) for _ in range(reader.number(4))]
    return _PLAIN[kind](reader)


def _integer(limit: int) -> Callable[[Reader], int]:
    def make(reader: Reader) -> int:
        chosen = int(reader.choice(_EDGES)) if reader.number(2) else reader.number(8)
        return min(chosen, limit)

    return make


def _text(reader: Reader) -> str:
    if reader.number(2):
        return reader.take(reader.number(24)).decode("utf-8", "replace")
    return str(reader.choice(("", "w-0", "w-1", "j-1", "running", "none", "memory", "0" * 64)))


_PLAIN: Final[dict[str, Callable[[Reader], Any]]] = {
    "u8": _integer(2**8 - 1),
    "u16": _integer(2**16 - 1),
    "u32": _integer(2**32 - 1),
    "u64": _integer(2**63 - 1),
    "generation": _integer(2**63 - 1),
    "f64": lambda reader: reader.choice((0.0, 1.0, -1.0, 1e308)),
    "figure": lambda reader: reader.choice((0.0, 1.0, -1.0, 1e308, float("nan"), float("-inf"))),
    "seconds": lambda reader: reader.choice((0.0, 1e-9, 0.25, 1e9)),
    "bool": lambda reader: bool(reader.number(2)),
    "line<=255": _text,
    "name": _text,
    "notice": lambda reader: reader.choice(("row_retried", "job_done", "")),
    "text<=16384": _text,
    "text<=4096": _text,
    "words<=4096": _text,
    "host": lambda reader: reader.choice(("", "h", "127.0.0.1", "::1", "h" * 253)),
    "hosts<=8": lambda reader: [
        reader.choice(("10.0.0.1", "::1", "h")) for _ in range(reader.number(9))
    ],
    "names<=2048": lambda reader: [_text(reader) for _ in range(reader.number(4))],
    "shards<=256": lambda reader: [
        reader.choice((0, 1, 2, 65536)) for _ in range(reader.number(9))
    ],
    "octets<=16384": lambda reader: reader.take(reader.choice((0, 64, 128, 256))),
    "octets<=64": lambda reader: reader.take(reader.choice((0, 16, 32, 64))),
    "map of figure": lambda reader: reader.choice(({}, {"a": 1}, {"loss": float("nan")})),
    "map": lambda reader: reader.choice(({}, {"a": 1}, {"loss": 0.5}, {"a": {"b": [1]}})),
}


# --- both ends of a connection --------------------------------------------------------------------


SECRET: Final = b"k" * 32
CONTROL_ROLES: Final = frozenset({m.Role.WORKER, m.Role.CTL, m.Role.JOIN})
MAX_ANSWER_BYTES: Final = 64 * 1024
"""Most bytes that a link may answer in one run; it only greets, and complains once."""


class _Socket:
    def setsockopt(self, *arguments: object) -> None:
        """Nothing to set."""


class Wire(asyncio.Transport):
    """Records the bytes that were sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the values of a plain connection on this machine."""
        known = {"peername": ("127.0.0.1", 9), "socket": _Socket()}
        return known.get(name, default)

    def writelines(self, list_of_data: Any) -> None:
        for piece in list_of_data:
            self.sent += piece
        assert len(self.sent) <= MAX_ANSWER_BYTES, "the answers grow without bound"

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken at once."""

    def get_write_buffer_size(self) -> int:
        """All is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """The run continues reading only while nothing is held."""

    def resume_reading(self) -> None:
        """The run continues reading only while nothing is held."""


class Witness:
    """Holds a link to what it promises to its handler."""

    def __init__(self) -> None:
        self.delivered = 0

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """An accepting side greets, with the secret where there is one."""
        if isinstance(message, m.Hello):
            secret = SECRET if link.session.role in DATA_ROLES else b""
            link.welcome(welcome("fuzzed"), secret=secret)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Memory is allocated only as the state allows."""
        assert link.session.state is State.OPEN
        assert payload_bytes <= LARGEST_MAX_PAYLOAD_BYTES
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """It is complete, and the other side may send it."""
        assert link.session.state is State.OPEN or isinstance(message, m.Prove)
        role = link.session.role
        assert role is not None
        allowed = m.from_acceptor(role) if link.session.opened else m.from_opener(role)
        assert type(message) in allowed or isinstance(message, m.Prove)
        again = m.decode_message({m.TYPE_KEY: _number(message), **_values(message)})
        assert repr(again) == repr(message), "a message that was accepted does not come back"
        self.delivered += 1

    def link_closed(self, link: Link, error: Any) -> None:
        """Nothing comes after this."""


def _number(message: m.Message) -> int:
    return next(n for n, kind in m.message_types().items() if kind is type(message))


def _values(message: m.Message) -> dict[str, Any]:
    [frame] = FrameDecoder().feed(m.message_bytes(message))
    return {key: value for key, value in frame.header.items() if key != m.TYPE_KEY}


def acceptor(roles: frozenset[m.Role]) -> tuple[Link, Wire, Witness]:
    """An accepting side that has just been called."""
    witness, wire = Witness(), Wire()
    link = Link(witness, accepts=roles)
    link.connection_made(wire)
    return link, wire, witness


def opener(role: m.Role) -> tuple[Link, Wire, Witness]:
    """An opening side that has just called and said HELLO."""
    witness, wire = Witness(), Wire()
    secret = SECRET if role in DATA_ROLES else b""
    link = Link(witness, hello=hello(role, "f"), secret=secret)
    link.connection_made(wire)
    return link, wire, witness


def put(link: Link, data: bytes) -> None:
    """Bytes arrive, in as many pieces as the link has room for."""
    view = memoryview(data)
    while view and not link.closing and not link.held:
        room = link.get_buffer(-1)
        count = min(len(room), len(view))
        room[:count] = view[:count]
        link.buffer_updated(count)
        view = view[count:]


def prove_to(link: Link, wire: Wire, role: m.Role) -> Tag:
    """Make the opener's half of the handshake; returns the tag of its later frames."""
    session = Session(role=role, random_bytes=bytes)
    secret = SECRET if role in DATA_ROLES else b""
    said = DataCredential(secret=secret, generation=1, roster_id=1).hello(role, "w-0")
    put(link, session.hello(said, secret=secret))
    assert len(list(session.feed(bytes(wire.sent)))) == 1
    put(link, session.data_to_send())
    assert link.session.state is State.OPEN
    return session.tag


def welcome_to(link: Link, wire: Wire, role: m.Role) -> Tag:
    """Make the acceptor's half of the handshake; returns the tag of its later frames."""
    session = Session(accepts=frozenset({role}), random_bytes=bytes)
    assert len(list(session.feed(bytes(wire.sent)))) == 1
    secret = SECRET if role in DATA_ROLES else b""
    put(link, session.welcome(welcome("fuzz"), secret=secret))
    assert link.session.state is State.OPEN
    return session.tag


def attack(link: Link, data: bytes, tag: Tag = CHECKSUM) -> int:
    """Send the messages of a fuzzer's bytes, then close; returns the number of frames."""
    made = frames(data, tag)
    for frame in made:
        put(link, frame)
    link.eof_received()
    link.connection_lost(None)
    return len(made)
