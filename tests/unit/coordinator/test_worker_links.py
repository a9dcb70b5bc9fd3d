"""Messages leave with the secrets that their receiver may know, and no others."""

from __future__ import annotations

import pytest

from dtd.coordinator.connections.worker_links import TICKET_LIFE_S, WorkerLinks
from dtd.net.data_port.resources import PROBE_SCOPE
from dtd.net.link import Link
from dtd.wire import messages as m
from dtd.wire.data_keys import generation_secret, ticket_key, worker_secret

DATA_KEY = bytes(range(32))
CLOCKS_S = {"worker-0": 50.2, "worker-1": 700.7}
INCARNATIONS = {"worker-0": 7, "worker-1": 8}


@pytest.fixture
def secrets() -> WorkerLinks:
    links = WorkerLinks(DATA_KEY, lambda: 10.0)
    for name, incarnation in INCARNATIONS.items():
        register = m.Register(
            name=name,
            incarnation=incarnation,
            pid=1,
            host="h",
            device="cpu",
            data_host="h",
            data_port=1,
            version="0",
            clock_s=CLOCKS_S[name],
        )
        links.register(Link(None), register)
    return links


def test_a_member_learns_the_secret_of_its_generation(secrets: WorkerLinks) -> None:
    assign = m.Assign(
        job="job-1",
        generation=3,
        roster_id=9,
        rank=0,
        roster=(),
        held_generation=0,
        held_step=0,
    )
    filled = secrets.filled(assign, "worker-0")
    assert isinstance(filled, m.Assign)
    assert filled.secret == generation_secret(DATA_KEY, "job-1", 3, 9)
    assert "secret" not in repr(filled)


@pytest.mark.parametrize(
    "message",
    [
        m.Probe(name="worker-1", host="h", port=1),
        m.Measure(number=1, what="latency", name="worker-1", host="h", port=1, spec={}),
    ],
)
def test_a_caller_that_tries_a_link_gets_a_ticket_for_nothing_else(
    secrets: WorkerLinks, message: m.Probe | m.Measure
) -> None:
    filled = secrets.filled(message, "worker-0")
    assert isinstance(filled, m.Probe | m.Measure)
    expires_s = 700 + TICKET_LIFE_S
    assert filled.ticket_expires_s == expires_s
    own = worker_secret(DATA_KEY, "worker-1", 8)
    assert filled.ticket_key == ticket_key(own, PROBE_SCOPE, expires_s)
