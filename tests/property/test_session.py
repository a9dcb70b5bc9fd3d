"""Any split of a stream gives the same events, and every shell ends at the same byte alike."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dtd.address import Address
from dtd.errors import DtdError, ProtocolError
from dtd.net.clients.blocking_link import BlockingLink
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.session import DATA_ROLES, Session, State, answer_of, hello, welcome
from scripts.fuzz_links import Wire, put
from tests.property.test_wire import cut, hostile

SECRET = b"s" * 32
PATIENCE_S = 60.0
SAID: dict[m.Role, list[tuple[m.Message, int]]] = {
    m.Role.WORKER: [
        (m.Running(job="j", generation=1, step=2), 0),
        (m.JobOutput(job="j", rank=0), 5000),
        (m.Leave(reason="x"), 0),
    ],
    m.Role.CTL: [(m.GetStatus(), 0), (m.PutPackage(digest="d", offset=0, size=1), 700)],
    m.Role.RING: [
        (m.Chunk(generation=1, step=0, phase=0, hop=0, bucket=0, chunk=0, source=0), 9000),
        (m.SmallGather(generation=1, step=0, sequence=0, hop=0, origin=0, source=0), 40),
        (m.LinkHeartbeat(generation=1), 0),
    ],
    m.Role.LIFELINE: [],
    m.Role.FETCH: [(m.FetchOpen(resource="state/1"), 0)],
    m.Role.JOIN: [(m.GetAuthority(), 0)],
    m.Role.STAR: [
        (m.Chunk(generation=1, step=0, phase=3, hop=0, bucket=0, chunk=0, source=0), 9000),
        (m.LinkHeartbeat(generation=1), 0),
    ],
}
ENDS: list[tuple[m.Message, int]] = [
    (m.Goodbye(reason="done"), 0),
    (m.Error(code=3, message="no", remedy="ask"), 0),
    (m.Registered(heartbeat_interval_s=1.0, heartbeat_timeout_s=1.0), 0),  # not an opener's
    (m.Prove(), 0),
]


@st.composite
def streams(draw: st.DrawFn) -> tuple[m.Role, bytes]:
    """All that an opener says, from HELLO on; perhaps damaged, and perhaps out of turn."""
    role = draw(st.sampled_from(list(m.Role)))
    secret = SECRET if role in DATA_ROLES else b""
    opener = Session(role=role, random_bytes=bytes)
    acceptor = Session(accepts=frozenset(m.Role), random_bytes=bytes)
    stream = opener.hello(
        hello(role, "w"), secret=secret, ends=draw(st.sampled_from([b"", b"ends"]))
    )
    list(acceptor.feed(stream))
    list(opener.feed(acceptor.welcome(welcome("c"), secret=secret, ends=b"ends")))
    stream += opener.data_to_send()
    chosen = draw(st.lists(st.sampled_from(SAID[role] + ENDS), max_size=6))
    for message, payload_bytes in chosen:
        stream += b"".join(opener.encode(message, bytes(range(250)) * (payload_bytes // 250)))
    place = draw(st.integers(0, 4 * len(stream)))
    if place < len(stream):
        wrong = bytes([stream[place] ^ draw(st.integers(1, 255))])
        stream = stream[:place] + wrong + stream[place + draw(st.integers(0, 1)) :]
    return role, stream[: len(stream) - draw(st.sampled_from([0, 0, 0, 1, 17]))]


def heard(role: m.Role, pieces: list[bytes]) -> tuple[list[tuple[Any, bytes]], str, State]:
    """An acceptor's reading of a stream: messages with payloads, how it ends, and where."""
    session = Session(accepts=frozenset(m.Role), random_bytes=bytes, staging_bytes=300)
    events: list[tuple[Any, bytes]] = []
    end = ""
    try:
        for piece in pieces:
            for message, payload in session.feed(piece):
                events.append((message, bytes(payload)))
                if isinstance(message, m.Hello):
                    secret = SECRET if role in DATA_ROLES else b""
                    assert session.welcome(welcome("c"), secret=secret)
        session.end()
    except ProtocolError as error:
        end = error.code.name  # BAD_MAGIC shows as much as it has seen
    return events, end, session.state


@settings(max_examples=100, deadline=None)
@given(made=streams(), lengths=st.lists(st.integers(1, 2000), min_size=1, max_size=5))
def test_any_split_gives_the_same_events(made: tuple[m.Role, bytes], lengths: list[int]) -> None:
    role, stream = made
    assert heard(role, cut(stream, lengths)) == heard(role, [stream])


# --- an enemy's bytes, to every shell ------------------------------------------------------------


@dataclass(eq=False)
class Heard:
    """One shell's reading: messages after WELCOME, and the words with which it ended."""

    messages: list[m.Message] = field(default_factory=list)
    end: str = ""

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        pass

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        self.messages.append(message)

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self.end = error.message if isinstance(error, ProtocolError) else ""


def by_session(data: bytes) -> Heard:
    """The machine itself."""
    made = Heard()
    session = Session(role=m.Role.CTL, random_bytes=bytes)
    session.hello(hello(m.Role.CTL, "tool"))
    try:
        for message, _payload in session.feed(data):
            if isinstance(message, m.Error):
                made.end = answer_of(message).message
            elif not isinstance(message, m.Welcome | m.Goodbye):
                made.messages.append(message)
        session.end()
    except ProtocolError as error:
        made.end = error.message
    return made


async def by_link(data: bytes) -> Heard:
    """The event loop's."""
    made = Heard()
    link = Link(made, hello=hello(m.Role.CTL, "tool"))
    link.connection_made(Wire())
    put(link, data)
    if not link.closing:
        link.eof_received()
    link.connection_lost(None)
    return made


def by_blocking_link(data: bytes) -> Heard:
    """That of dtdctl and of everything that fetches."""
    made = Heard()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            link = BlockingLink(
                Address("127.0.0.1", 9),
                role=m.Role.CTL,
                name="tool",
                timeout_s=PATIENCE_S,
                connect=lambda _address, _timeout_s: ours,
            )
            try:
                while True:
                    made.messages.append(link.receive(timeout_s=PATIENCE_S).message)
            finally:
                link.close()
        except ConnectionError:
            pass
        except DtdError as error:
            made.end = error.message
    return made


frames = st.sampled_from(
    [
        m.message_bytes(m.Result(), b"\x80"),
        m.message_bytes(m.Result(), b"\x80" * 1500),
        m.message_bytes(m.Goodbye(reason="done")),
        m.message_bytes(m.Error(code=17, message="no\x1b[2J", remedy="ask")),
        m.message_bytes(m.Error(code=1, message="what?")),
        m.message_bytes(m.GetStatus()),
        m.message_bytes(welcome("again")),
    ]
)


@settings(max_examples=100, deadline=None)
@given(welcomed=st.integers(0, 3), said=st.lists(frames | hostile, max_size=5))
def test_an_enemy_ends_every_shell_with_the_same_error(welcomed: int, said: list[bytes]) -> None:
    data = (m.message_bytes(welcome("enemy")) if welcomed else b"") + b"".join(said)
    expected = by_session(data)
    for shell in (asyncio.run(by_link(data)), by_blocking_link(data)):
        assert (shell.messages, shell.end) == (expected.messages, expected.end)
