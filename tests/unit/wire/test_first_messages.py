"""Each side's first message is understood by the other side."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from dtd.wire.session import Session, State, hello, welcome


def test_two_sessions_agree_on_role_and_limits() -> None:
    opener = Session(role=m.Role.WORKER, random_bytes=bytes)
    acceptor = Session(accepts=frozenset({m.Role.WORKER}), random_bytes=bytes)
    said = hello(m.Role.WORKER, "w", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES)
    assert list(acceptor.feed(opener.hello(said)))
    assert list(opener.feed(acceptor.welcome(welcome("coordinator"))))
    assert (opener.state, acceptor.state) == (State.OPEN, State.OPEN)
    assert acceptor.role is m.Role.WORKER
    assert acceptor.max_payload_bytes == DEFAULT_MAX_PAYLOAD_BYTES
    assert opener.max_payload_bytes == LARGEST_MAX_PAYLOAD_BYTES
