"""Both ends of every connection, without a socket: what a hostile other side can say to them.

A `Link` gets a transport that only remembers.  Before authentication the fuzzer's frames are the
first that come; after it, the handshake has been made with the right key, as somebody with a stolen
credential could.  Whatever comes, a link delivers valid messages that its state allows, or closes.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dtd.net.handshake import Keys, Opening, answer
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.connection import DATA_ROLES, Connection, State
from dtd.wire.frames import LARGEST_MAX_PAYLOAD_BYTES, FrameDecoder, Hold
from dtd.wire.greeting import hello, welcome
from dtd.wire.tags import CHECKSUM, UNDECIDED, Tag
from scripts.fuzz_input import frames

SECRET: Final = b"k" * 32
CONTROL_ROLES: Final = frozenset({m.Role.WORKER, m.Role.CTL, m.Role.JOIN})
MAX_ANSWER_BYTES: Final = 64 * 1024
"""What a link may say to whatever it hears in one run; it only greets, and complains once."""


class _Socket:
    def setsockopt(self, *arguments: object) -> None:
        """Nothing to set."""


class Wire(asyncio.Transport):
    """Remembers what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of a plain connection on this machine."""
        known = {"peername": ("127.0.0.1", 9), "socket": _Socket()}
        return known.get(name, default)

    def writelines(self, list_of_data: Any) -> None:
        """All pieces."""
        for piece in list_of_data:
            self.sent += piece
        assert len(self.sent) <= MAX_ANSWER_BYTES, "the answers grow without bound"

    def close(self) -> None:
        """In good order."""
        self.closed = True

    def abort(self) -> None:
        """At once."""
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """All is taken at once."""

    def get_write_buffer_size(self) -> int:
        """All is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """The run goes on reading only while nothing is held."""

    def resume_reading(self) -> None:
        """As above."""


class Witness:
    """Holds a link to what it promises to its handler."""

    def __init__(self) -> None:
        self.delivered = 0

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        """An accepting side greets, with the secret where there is one."""
        if isinstance(message, m.Hello):
            secret = SECRET if link.connection.role in DATA_ROLES else b""
            link.welcome(welcome("fuzzed"), secret=secret)

    def link_place(
        self, link: Link, message: m.Message, payload_bytes: int
    ) -> memoryview | Hold | None:
        """Memory is set aside for what the state allows only."""
        assert link.connection.state is State.OPEN
        assert payload_bytes <= LARGEST_MAX_PAYLOAD_BYTES
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        """It is whole, and the other side may say it."""
        assert link.connection.state is State.OPEN or isinstance(message, m.Prove)
        role = link.connection.role
        assert role is not None
        allowed = m.from_acceptor(role) if link.connection.opened else m.from_opener(role)
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
    link = Link(witness, Connection(opened=False, accepts=roles))
    link.connection_made(wire)
    return link, wire, witness


def opener(role: m.Role) -> tuple[Link, Wire, Witness]:
    """An opening side that has just called and said HELLO."""
    witness, wire = Witness(), Wire()
    secret = SECRET if role in DATA_ROLES else b""
    link = Link(witness, Connection(opened=True, role=role), hello=hello(role, "f"), secret=secret)
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
    """Make the opener's half of the handshake; returns the tag of what it says from then on."""
    greeting = hello(role, "w-0", generation=1, roster_id=1)
    if role not in DATA_ROLES:
        put(link, m.message_bytes(greeting))
        assert link.connection.state is State.OPEN
        return CHECKSUM
    opening = Opening(greeting, SECRET, private=True)
    put(link, m.message_bytes(opening.hello))
    keys = _keys_of(opening, bytes(wire.sent))
    put(link, m.message_bytes(m.Prove(), tag=keys.opener))
    assert link.connection.state is State.OPEN
    return keys.opener


def _keys_of(opening: Opening, said: bytes) -> Keys:
    """WELCOME brings what the keys are made of, and is sealed with them itself."""
    found: list[Keys] = []

    def take(header: dict[str, Any], _payload_bytes: int) -> None:
        message = m.decode_message(header)
        assert isinstance(message, m.Welcome)
        found.append(opening.keys(message))
        decoder.tag = found[0].acceptor

    decoder = FrameDecoder(take, tag=UNDECIDED)
    assert len(list(decoder.feed(said))) == 1
    return found[0]


def welcome_to(link: Link, wire: Wire, role: m.Role) -> Tag:
    """Make the acceptor's half of the handshake; returns the tag of what it says from then on."""
    if role not in DATA_ROLES:
        put(link, m.message_bytes(welcome("fuzz")))
        assert link.connection.state is State.OPEN
        return CHECKSUM
    decoder = FrameDecoder()
    [frame] = decoder.feed(bytes(wire.sent))
    said = m.decode_message(frame.header)
    assert isinstance(said, m.Hello)
    made: tuple[m.Welcome, Keys] = answer(
        welcome("fuzz"), said, header=decoder.header_bytes, secret=SECRET, private=True
    )
    put(link, m.message_bytes(made[0], tag=made[1].acceptor))
    assert link.connection.state is State.OPEN
    return made[1].acceptor


def attack(link: Link, data: bytes, tag: Tag = CHECKSUM) -> int:
    """Say what a fuzzer's bytes stand for, then hang up; returns the number of frames."""
    made = frames(data, tag)
    for frame in made:
        put(link, frame)
    link.eof_received()
    link.connection_lost(None)
    return len(made)
