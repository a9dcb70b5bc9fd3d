"""What both sides say first is understood by the other side."""

from __future__ import annotations

from dtd.wire import messages as m
from dtd.wire.connection import Connection, State
from dtd.wire.frames import DEFAULT_MAX_PAYLOAD_BYTES, LARGEST_MAX_PAYLOAD_BYTES
from dtd.wire.greeting import hello, welcome


def test_two_connections_agree_on_role_and_limits() -> None:
    opener = Connection(opened=True, role=m.Role.WORKER)
    acceptor = Connection(opened=False, accepts=frozenset({m.Role.WORKER}))
    acceptor.receive(hello(m.Role.WORKER, "w", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES))
    acceptor.accept()
    opener.receive(welcome("coordinator"))
    assert (opener.state, acceptor.state) == (State.OPEN, State.OPEN)
    assert acceptor.role is m.Role.WORKER
    assert acceptor.max_payload_bytes == DEFAULT_MAX_PAYLOAD_BYTES
    assert opener.max_payload_bytes == LARGEST_MAX_PAYLOAD_BYTES


def test_hello_of_a_ring_names_the_place_in_it() -> None:
    said = hello(m.Role.RING, "w", generation=3, roster_id=9, rank=1)
    assert (said.role, said.name) == ("ring", "w")
    assert (said.generation, said.roster_id, said.rank) == (3, 9, 1)
