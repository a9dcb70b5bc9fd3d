"""Connections: every message in every state, role and direction; versions, limits and ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire import connection as c
from dtd.wire import fields
from dtd.wire import messages as m
from dtd.wire.connection import Connection, State
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from dtd.wire.messages.registry import message_number

ROLES = list(m.Role)
TABLES = (m.from_opener, m.from_acceptor)
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
    "host": "x",
    "names": [],
    "name": "x",
    "notice": "row_retried",
    "map": {},
    "list": [],
    "octets": b"x",
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
NONCE = bytes(c.NONCE_BYTES)


def hello(role: m.Role) -> m.Hello:
    nonce = NONCE if role in c.DATA_ROLES else b""
    return dataclasses.replace(HELLO, role=role.value, nonce=nonce)


def welcome(role: m.Role) -> m.Welcome:
    return dataclasses.replace(WELCOME, nonce=NONCE if role in c.DATA_ROLES else b"")


def message(cls: type[Any]) -> Any:
    if cls in (m.Hello, m.Welcome):
        return {m.Hello: HELLO, m.Welcome: WELCOME}[cls]
    values = {
        name: next(value for start, value in VALUES.items() if kind.startswith(start))
        for name, kind, _check, _required in fields.layout(cls)
    }
    return m.decode_message({"t": message_number(cls), **values})


def acceptor(state: State, role: m.Role = m.Role.WORKER) -> Connection:
    side = Connection(opened=False, accepts=frozenset(ROLES))
    if state is not State.AWAIT_HELLO:
        side.receive(hello(role))
    if state in (State.AWAIT_PROVE, State.OPEN):
        side.accept()
    if state is State.OPEN and role in c.DATA_ROLES:
        side.receive(m.Prove())
    assert side.state is state
    return side


def opener(state: State, role: m.Role = m.Role.WORKER) -> Connection:
    side = Connection(opened=True, role=role)
    if state is State.OPEN:
        side.receive(welcome(role))
    assert side.state is state
    return side


def refused(side: Connection, received: Any, payload_bytes: int = 0) -> ProtocolError:
    with pytest.raises(ProtocolError) as error:
        side.receive(received, payload_bytes)
    assert side.state is State.CLOSED
    with pytest.raises(ProtocolError) as again:
        side.receive(m.Goodbye())
    assert again.value.code is ErrorCode.WRONG_STATE
    return error.value


# --- who may send what, and when ----------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_open_connection_takes_what_its_role_allows(role: m.Role, cls: type[Any]) -> None:
    for side, allowed in (
        (acceptor(State.OPEN, role), m.from_opener(role)),
        (opener(State.OPEN, role), m.from_acceptor(role)),
    ):
        if cls in allowed:
            side.receive(message(cls))
            ended = cls in (m.Error, m.Goodbye)
            assert side.state is (State.CLOSED if ended else State.OPEN)
        else:
            error = refused(side, message(cls))
            assert error.code is ErrorCode.WRONG_STATE
            assert m.message_name(cls) in str(error)


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_handshake_takes_nothing_else(cls: type[Any]) -> None:
    for side, expected in (
        (acceptor(State.AWAIT_HELLO), m.Hello),
        (acceptor(State.DECIDING), None),
        (acceptor(State.AWAIT_PROVE, m.Role.RING), m.Prove),
        (opener(State.AWAIT_WELCOME), m.Welcome),
    ):
        if cls not in (expected, m.Error):
            assert refused(side, message(cls)).code is ErrorCode.WRONG_STATE


def test_every_message_has_exactly_one_sender() -> None:
    several = {m.Beat, m.Revocations, m.Renew, m.Renewed}
    either = {m.Hello, m.Welcome, m.Prove, m.Error, m.Goodbye} | several
    for cls in set(TYPES) - either:
        senders = [role for table in TABLES for role in ROLES if cls in table(role)]
        assert len(senders) == 1, cls
    for table in TABLES:
        assert [role for role in ROLES if m.Beat in table(role)] == [m.Role.RING]
        assert [role for role in ROLES if m.Revocations in table(role)] == [m.Role.WORKER]
        renew = [role for role in ROLES if {m.Renew, m.Renewed} & table(role)]
        assert renew == [m.Role.WORKER, m.Role.CTL]
        assert all({m.Error, m.Goodbye} <= table(role) for role in ROLES)


@pytest.mark.parametrize(
    "side",
    [
        acceptor(State.AWAIT_HELLO),
        acceptor(State.DECIDING),
        acceptor(State.OPEN),
        opener(State.AWAIT_WELCOME),
        opener(State.OPEN),
    ],
    ids=lambda side: f"{'opener' if side.opened else 'acceptor'}-{side.state.name}",
)
def test_error_ends_a_connection_in_any_state(side: Connection) -> None:
    side.receive(m.Error(code=18, message="x"))
    assert side.state is State.CLOSED


def test_nothing_comes_after_the_end() -> None:
    for cls in TYPES:
        side = acceptor(State.OPEN)
        side.end()
        assert refused(side, message(cls)).code is ErrorCode.WRONG_STATE


# --- handshake ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_handshake_opens_both_sides(role: m.Role) -> None:
    ours, theirs = opener(State.AWAIT_WELCOME, role), acceptor(State.AWAIT_HELLO)
    theirs.receive(hello(role))
    assert (theirs.state, theirs.role) == (State.DECIDING, role)
    theirs.accept()
    ours.receive(welcome(role))
    if role in c.DATA_ROLES:
        assert (ours.state, theirs.state) == (State.OPEN, State.AWAIT_PROVE)
        theirs.receive(m.Prove())
    assert (ours.state, theirs.state) == (State.OPEN, State.OPEN)


def test_second_hello_is_refused() -> None:
    assert refused(acceptor(State.DECIDING), HELLO).code is ErrorCode.WRONG_STATE
    assert refused(acceptor(State.OPEN), HELLO).code is ErrorCode.WRONG_STATE


def test_unknown_role_is_refused() -> None:
    error = refused(acceptor(State.AWAIT_HELLO), dataclasses.replace(HELLO, role="admin"))
    assert error.code is ErrorCode.BAD_FIELD
    assert "'admin'" in str(error)


def test_role_that_is_not_served_is_refused_with_a_hint() -> None:
    side = Connection(opened=False, accepts=frozenset({m.Role.RING}))
    error = refused(side, HELLO)
    assert error.code is ErrorCode.WRONG_STATE
    assert "check the port" in error.remedy


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2, 255), (2, 1)])
def test_opener_of_another_version_is_refused(low: int, high: int) -> None:
    hello = dataclasses.replace(HELLO, protocol_min=low, protocol_max=high)
    error = refused(acceptor(State.AWAIT_HELLO), hello)
    assert error.code is ErrorCode.BAD_VERSION
    assert f"w0 speaks protocol {low}..{high}" in str(error)
    assert error.remedy


def test_opener_of_several_versions_is_welcome() -> None:
    side = acceptor(State.AWAIT_HELLO)
    side.receive(dataclasses.replace(HELLO, protocol_min=0, protocol_max=7))
    assert side.state is State.DECIDING


def test_acceptor_that_chose_another_version_is_refused() -> None:
    error = refused(opener(State.AWAIT_WELCOME), dataclasses.replace(WELCOME, protocol=2))
    assert error.code is ErrorCode.BAD_VERSION


def test_accepting_after_the_end_stays_ended() -> None:
    side = acceptor(State.DECIDING)
    side.end()
    side.accept()
    assert side.state is State.CLOSED


# --- payloads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "limit"),
    [(0, 0), (65536, 65536), (2**24, 2**24), (2**32 - 1, LARGEST_MAX_PAYLOAD_BYTES)],
)
def test_other_side_states_what_it_takes(stated: int, limit: int) -> None:
    theirs, ours = acceptor(State.AWAIT_HELLO), opener(State.AWAIT_WELCOME)
    assert theirs.max_payload_bytes == ours.max_payload_bytes == DEFAULT_MAX_PAYLOAD_BYTES
    theirs.receive(dataclasses.replace(HELLO, max_payload_bytes=stated))
    ours.receive(dataclasses.replace(WELCOME, max_payload_bytes=stated))
    assert theirs.max_payload_bytes == ours.max_payload_bytes == limit


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("opened", [False, True])
def test_payload_beyond_what_a_message_carries_is_refused(role: m.Role, opened: bool) -> None:
    make = opener if opened else acceptor
    for cls in m.from_acceptor(role) if opened else m.from_opener(role):
        limit = m.kind_of(cls).max_payload_bytes
        make(State.OPEN, role).receive(message(cls), limit)
        error = refused(make(State.OPEN, role), message(cls), limit + 1)
        assert error.code is ErrorCode.BAD_PAYLOAD
        assert m.message_name(cls) in str(error)


def test_handshake_carries_no_payload() -> None:
    assert refused(acceptor(State.AWAIT_HELLO), HELLO, 1).code is ErrorCode.BAD_PAYLOAD
    assert refused(opener(State.AWAIT_WELCOME), WELCOME, 1).code is ErrorCode.BAD_PAYLOAD


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_data_connection_is_open_after_prove(role: m.Role) -> None:
    side = acceptor(State.DECIDING, role)
    side.accept()
    if role in c.DATA_ROLES:
        assert side.state is State.AWAIT_PROVE
        side.receive(m.Prove())
    assert side.state is State.OPEN
    assert refused(side, m.Prove()).code is ErrorCode.WRONG_STATE


@pytest.mark.parametrize("role", ROLES)
def test_a_nonce_belongs_where_there_is_a_key(role: m.Role) -> None:
    for nonce in {b"", NONCE, NONCE[1:]} - {hello(role).nonce}:
        said = dataclasses.replace(hello(role), nonce=nonce)
        error = refused(acceptor(State.AWAIT_HELLO), said)
        assert (error.code, "HELLO.nonce" in error.message) == (ErrorCode.BAD_FIELD, True)
        answered = dataclasses.replace(welcome(role), nonce=nonce)
        error = refused(opener(State.AWAIT_WELCOME, role), answered)
        assert (error.code, "WELCOME.nonce" in error.message) == (ErrorCode.BAD_FIELD, True)


@pytest.mark.parametrize("tag", [0, 3, 4])
def test_an_unknown_tag_is_refused(tag: int) -> None:
    said = dataclasses.replace(hello(m.Role.RING), tag=tag)
    error = refused(acceptor(State.AWAIT_HELLO), said)
    assert (error.code, "HELLO.tag" in error.message) == (ErrorCode.BAD_FIELD, True)
