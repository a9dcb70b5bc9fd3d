"""A worker that talks too fast is read later, and nobody else is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from dtd.coordinator.connections.message_rates import REGISTERED_AT_ONCE, Pace
from dtd.security.identity import Identity
from dtd.wire import messages as m
from dtd.wire.frames import Hold


class Link:
    def __init__(self, role="worker", name="host", *, speaks=m.Role.WORKER):
        self.identity = Identity(role=role, name=name, serial="ab", where="certificate")
        self.session = SimpleNamespace(role=speaks)
        self.resumed = asyncio.Event()

    def resume(self):
        self.resumed.set()


def said(pace, link):
    """The outcome of one more message."""
    return pace.place(link, m.Heartbeat(state="idle"), 0)


def heard(pace, link, payload_bytes=0):
    """How many messages go through before one has to wait; None: all do."""
    for count in range(1, 1000):
        if isinstance(pace.place(link, m.Heartbeat(state="idle"), payload_bytes), Hold):
            return count - 1
    return None


async def test_workers_of_one_credential_share_a_rate_and_others_have_theirs():
    pace = Pace()
    heard(pace, Link())
    assert isinstance(said(pace, Link()), Hold)
    assert said(pace, Link(name="other")) is None


async def test_a_worker_that_comes_and_goes_waits_to_be_let_in_and_others_do_not():
    def register(name):
        return m.Register(
            name=name,
            incarnation=1,
            pid=1,
            host="here",
            device="cpu",
            data_host="127.0.0.1",
            data_port=1,
            version="1",
        )

    pace = Pace()
    came = [pace.place(Link(), register("w"), 0) for _ in range(100)]
    assert came.count(None) == REGISTERED_AT_ONCE + 1
    assert pace.place(Link(), register("other"), 0) is None
    assert said(pace, Link()) is None
