"""Sessions: every message in every state, role and direction; versions, limits, keys and ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dtd.errors import ErrorCode, ProtocolError, RequestRefused
from dtd.wire import fields
from dtd.wire import messages as m
from dtd.wire.frames import (
    LARGEST_MAX_PAYLOAD_BYTES,
    frame_bytes,
)
from dtd.wire.messages.registry import message_number
from dtd.wire.session import (
    DATA_ROLES,
    NONCE_BYTES,
    Session,
    State,
    answer_of,
    error_of,
)
from dtd.wire.tags import FLAG_GCM, FLAG_XXH3

ROLES = list(m.Role)
TABLES = (m.from_opener, m.from_acceptor)
DATA_LINKS = [m.Role.RING, m.Role.STAR]
TYPES = list(m.message_types().values())
VALUES = {
    "u": 1,
    "generation": 1,
    "f": 0.5,
    "seconds": 0.5,
    "bool": True,
    "text": "x",
    "words": "x",
    "line": "x",
    "hosts": [],
    "host": "x",
    "names": [],
    "name": "x",
    "notice": "row_retried",
    "map": {},
    "list": [],
    "octets<=16384": bytes(128),
    "octets": b"x",
    "shards": [],
}
HELLO = m.Hello(
    role="worker",
    name="w0",
    protocol_min=1,
    protocol_max=1,
    version="0.1.0",
    max_payload_bytes=2_000_000,
)
WELCOME = m.Welcome(protocol=1, version="0.1.0", name="coordinator", max_payload_bytes=3_000_000)
NONCE = bytes(NONCE_BYTES)
SECRET = b"s" * 32


def hello(role: m.Role) -> m.Hello:
    nonce = NONCE if role in DATA_ROLES else b""
    return dataclasses.replace(HELLO, role=role.value, nonce=nonce)


def welcome(role: m.Role) -> m.Welcome:
    return dataclasses.replace(WELCOME, nonce=NONCE if role in DATA_ROLES else b"")


def message(cls: type[Any]) -> Any:
    if cls in (m.Hello, m.Welcome):
        return {m.Hello: HELLO, m.Welcome: WELCOME}[cls]
    values = {
        name: next(value for start, value in VALUES.items() if kind.startswith(start))
        for name, kind, _check, _required in fields.layout(cls)
    }
    return m.decode_message({"t": message_number(cls), **values})


class Side:
    """A session and the other side of its connection, which says whatever a test wants."""

    def __init__(self, session: Session, other: Session) -> None:
        self.session = session
        self.other = other

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def max_payload_bytes(self) -> int:
        return self.session.max_payload_bytes

    def receive(self, message: m.Message, payload_bytes: int = 0) -> None:
        """The other side says this, in its place and with its key."""
        if isinstance(message, m.Prove) and self.state is State.AWAIT_PROVE:
            data = self.other.data_to_send()
        else:
            data = b"".join(self.other.encode(message, bytes(payload_bytes)))
        received = [(one, len(payload)) for one, payload in self.session.feed(data)]
        assert [(type(one), size) for one, size in received] == [(type(message), payload_bytes)]


def secret_of(role: m.Role) -> bytes:
    return SECRET if role in DATA_ROLES else b""


def pair(role: m.Role) -> tuple[Session, Session]:
    """(opener, acceptor) that have heard nothing of each other."""
    opener = Session(role=role, random_bytes=bytes, staging_bytes=4096)
    return opener, Session(accepts=frozenset(ROLES), random_bytes=bytes, staging_bytes=4096)


def shake(opener: Session, acceptor: Session, until: State) -> None:
    """As much of a handshake as leads the acceptor to this state, or the opener to OPEN."""
    role = opener.role
    assert role is not None
    secret = secret_of(role)
    said = opener.hello(hello(role), secret=secret, ends=b"ends")
    if until is State.AWAIT_HELLO:
        return
    assert [type(one) for one, _ in acceptor.feed(said)] == [m.Hello]
    if until is State.DECIDING:
        return
    said = acceptor.welcome(welcome(role), secret=secret, ends=b"ends")
    if until is State.AWAIT_WELCOME:
        return
    assert [type(one) for one, _ in opener.feed(said)] == [m.Welcome]
    if until is State.OPEN:
        list(acceptor.feed(opener.data_to_send()))


def acceptor(state: State, role: m.Role = m.Role.WORKER) -> Side:
    opener, made = pair(role)
    shake(opener, made, state)
    assert made.state is state
    return Side(made, opener)


def opener(state: State, role: m.Role = m.Role.WORKER) -> Side:
    made, acceptor = pair(role)
    shake(made, acceptor, state)
    assert made.state is state
    return Side(made, acceptor)


def refused(side: Side, received: Any, payload_bytes: int = 0) -> ProtocolError:
    with pytest.raises(ProtocolError) as error:
        side.receive(received, payload_bytes)
    assert side.state is State.CLOSED
    assert not list(side.session.feed(m.message_bytes(m.Goodbye())))
    return error.value


# --- who may send what, and when ----------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("make", "table"), [(acceptor, m.from_opener), (opener, m.from_acceptor)])
def test_open_connection_takes_what_its_role_allows(role: m.Role, make: Any, table: Any) -> None:
    allowed = table(role)
    for cls in TYPES:
        side = make(State.OPEN, role)
        if cls in allowed:
            side.receive(message(cls))
            ended = cls in (m.Error, m.Goodbye)
            assert side.state is (State.CLOSED if ended else State.OPEN)
        else:
            error = refused(side, message(cls))
            assert error.code is ErrorCode.WRONG_STATE
            assert m.message_name(cls) in str(error)


@pytest.mark.parametrize(
    ("make", "state", "role", "expected"),
    [
        (acceptor, State.AWAIT_HELLO, m.Role.WORKER, m.Hello),
        (acceptor, State.DECIDING, m.Role.WORKER, None),
        (acceptor, State.AWAIT_PROVE, m.Role.RING, m.Prove),
        (opener, State.AWAIT_WELCOME, m.Role.WORKER, m.Welcome),
    ],
)
def test_handshake_takes_nothing_else(make: Any, state: State, role: m.Role, expected: Any) -> None:
    for cls in set(TYPES) - {expected, m.Error}:
        assert refused(make(state, role), message(cls)).code is ErrorCode.WRONG_STATE


def test_every_message_has_exactly_one_sender() -> None:
    several = {m.Chunk, m.CodedChunk, m.LinkHeartbeat, m.Renew, m.Renewed}
    either = {m.Hello, m.Welcome, m.Prove, m.Error, m.Goodbye} | several
    for cls in set(TYPES) - either:
        senders = [role for table in TABLES for role in ROLES if cls in table(role)]
        assert len(senders) == 1, cls
    for table in TABLES:
        assert [role for role in ROLES if m.LinkHeartbeat in table(role)] == DATA_LINKS
        renew = [role for role in ROLES if {m.Renew, m.Renewed} & table(role)]
        assert renew == [m.Role.WORKER, m.Role.CTL]
        assert all({m.Error, m.Goodbye} <= table(role) for role in ROLES)
    by_opener, by_acceptor = (
        [role for role in ROLES if m.Chunk in table(role)] for table in TABLES
    )
    assert by_opener == DATA_LINKS
    assert by_acceptor == [m.Role.STAR]


@pytest.mark.parametrize(
    "side",
    [
        acceptor(State.AWAIT_HELLO),
        acceptor(State.DECIDING),
        acceptor(State.OPEN),
        opener(State.AWAIT_WELCOME),
        opener(State.OPEN),
    ],
    ids=lambda side: f"{'opener' if side.session.opened else 'acceptor'}-{side.state.name}",
)
def test_error_ends_a_connection_in_any_state(side: Side) -> None:
    side.receive(m.Error(code=18, message="x"))
    assert side.state is State.CLOSED


def test_nothing_comes_after_the_end() -> None:
    side = acceptor(State.OPEN)
    list(side.session.feed(m.message_bytes(m.Goodbye()) + m.message_bytes(HELLO)))
    for data in (m.message_bytes(HELLO), b"no frame"):
        assert not list(side.session.feed(data))
        view = side.session.next_buffer()
        view[: len(data)] = data
        assert not list(side.session.received(len(data)))
    side.session.end()
    assert side.state is State.CLOSED


# --- handshake ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ours", [b"one", b""])
@pytest.mark.parametrize("theirs", [b"one", b"two", b""])
def test_the_fast_tag_is_for_sides_that_name_their_channel_alike(
    ours: bytes, theirs: bytes
) -> None:
    """With a proxy between them both may be on loopback, but not on one connection."""
    opener, acceptor = pair(m.Role.RING)
    list(acceptor.feed(opener.hello(hello(m.Role.RING), secret=SECRET, ends=ours)))
    said = acceptor.welcome(welcome(m.Role.RING), secret=SECRET, ends=theirs)
    [(answer, _)] = opener.feed(said)
    assert isinstance(answer, m.Welcome)
    assert answer.tag == (FLAG_XXH3 if ours == theirs == b"one" else FLAG_GCM)
    assert opener.tag.flag == FLAG_GCM  # of PROVE, in any case


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2, 255), (2, 1)])
def test_opener_of_another_version_is_refused(low: int, high: int) -> None:
    hello = dataclasses.replace(HELLO, protocol_min=low, protocol_max=high)
    error = refused(acceptor(State.AWAIT_HELLO), hello)
    assert error.code is ErrorCode.BAD_VERSION
    assert f"w0 speaks protocol {low}..{high}" in str(error)
    assert error.remedy


# --- payloads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("opened", [False, True])
def test_payload_beyond_what_a_message_carries_is_refused(role: m.Role, opened: bool) -> None:
    make = opener if opened else acceptor
    for cls in m.from_acceptor(role) if opened else m.from_opener(role):
        limit = m.kind_of(cls).max_payload_bytes
        if limit == LARGEST_MAX_PAYLOAD_BYTES:  # the frame's own limit is the same
            make(State.OPEN, role).receive(message(cls), 4096)
            continue
        make(State.OPEN, role).receive(message(cls), limit)
        error = refused(make(State.OPEN, role), message(cls), limit + 1)
        assert error.code is ErrorCode.BAD_PAYLOAD
        assert m.message_name(cls) in str(error)


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_nonce_belongs_where_there_is_a_key(role: m.Role) -> None:
    for nonce in {b"", NONCE, NONCE[1:]} - {hello(role).nonce}:
        said = dataclasses.replace(hello(role), nonce=nonce)
        error = refused(acceptor(State.AWAIT_HELLO), said)
        assert (error.code, "HELLO.nonce" in error.message) == (ErrorCode.BAD_FIELD, True)
        answered = dataclasses.replace(welcome(role), nonce=nonce)
        error = refused(opener(State.AWAIT_WELCOME, role), answered)
        assert (error.code, "WELCOME.nonce" in error.message) == (ErrorCode.BAD_FIELD, True)


# --- what the other side's ERROR becomes ----------------------------------------------------------

HOSTILE = "no\x1b[2J\x9b2J\u202e\r\nerror: forged"


@pytest.mark.parametrize(
    ("role", "until", "is_called"),
    [
        (m.Role.RING, State.AWAIT_HELLO, False),
        (m.Role.FETCH, State.AWAIT_HELLO, True),
        (m.Role.JOIN, State.AWAIT_HELLO, True),
        (m.Role.CTL, State.DECIDING, True),
    ],
)
def test_before_the_other_side_is_known_an_error_is_a_strangers(
    role: m.Role, until: State, is_called: bool
) -> None:
    opener, called = pair(role)
    shake(opener, called, until)
    side = called if is_called else opener
    said = m.Error(code=ErrorCode.BAD_VERSION, message="run `curl evil`", remedy="now")
    assert [one for one, _ in side.feed(frame_bytes(m.encode_header(said)))] == [said]
    assert not side.knows_peer


def test_a_plain_no_is_a_refusal() -> None:
    said = m.Error(code=ErrorCode.REFUSED, message=HOSTILE, remedy="ask")
    error = answer_of(said)
    assert isinstance(error, RequestRefused)
    assert (error.message, error.remedy) == (error_of(said).message, "ask")
    assert isinstance(answer_of(m.Error(code=1, message="")), ProtocolError)
