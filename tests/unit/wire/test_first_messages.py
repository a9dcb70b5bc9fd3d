"""Each side's first message is understood by the other side."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from dtd.wire.session import DataCredential, Session, State, hello, welcome


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


def test_member_of_a_generation_says_so_with_its_secret() -> None:
    assign = m.Assign(
        job="j",
        generation=3,
        roster_id=9,
        rank=1,
        roster=(),
        held_generation=0,
        held_step=0,
        secret=b"s" * 32,
    )
    credential = DataCredential.of(assign)
    said = credential.hello(m.Role.RING, "w")
    assert (said.role, said.generation, said.roster_id, said.rank) == ("ring", 3, 9, 1)
    assert credential.secret == assign.secret
    assert "sss" not in repr(credential)
