"""The endpoint: what is published is scraped, and nobody who connects can hurt."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

import dtd.metrics.exposition as module
from dtd.address import Address
from dtd.errors import ConfigError
from dtd.metrics.catalogue import Sample
from dtd.metrics.exposition import Exposition

LOOPBACK = Address("127.0.0.1", 0)


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    made = Exposition(LOOPBACK)
    made.start()
    yield made
    made.close()


def test_what_is_published_is_scraped(exposition, scrape):
    exposition.publish(
        [
            Sample("dtd_job_step", ("j-1",), 7),
            Sample("dtd_workers", ("running",), 2),
            Sample("dtd_workers", ("idle",), 1),
            Sample("dtd_worker_sent_bytes_total", ("w-0",), 12.0),
            Sample("dtd_link_round_trip_seconds", ("w-0", "w-1"), 0.25),
            Sample("dtd_queued_jobs", (), 0),
        ]
    )
    seen = scrape(exposition.address)
    mine = {key: value for key, value in seen.items() if key[0].startswith("dtd_")}
    assert mine == {
        ("dtd_job_step", (("job", "j-1"),)): 7,
        ("dtd_workers", (("kind", "running"),)): 2,
        ("dtd_workers", (("kind", "idle"),)): 1,
        ("dtd_worker_sent_bytes_total", (("worker", "w-0"),)): 12,
        ("dtd_link_round_trip_seconds", (("peer", "w-1"), ("worker", "w-0"))): 0.25,
        ("dtd_queued_jobs", ()): 0,
    }
    assert seen["process_resident_memory_bytes", ()] > 0


def test_the_next_snapshot_replaces_the_last(exposition, scrape):
    exposition.publish([Sample("dtd_job_step", ("j-1",), 7)])
    exposition.publish(Sample("dtd_job_step", ("j-2",), step) for step in [1])
    assert [key for key in scrape(exposition.address) if key[0].startswith("dtd_")] == [
        ("dtd_job_step", (("job", "j-2"),))
    ]


def test_two_daemons_in_one_process_have_their_own(exposition, scrape):
    other = Exposition(LOOPBACK)
    other.start()
    other.publish([Sample("dtd_queued_jobs", (), 3)])
    assert ("dtd_queued_jobs", ()) not in scrape(exposition.address)
    assert scrape(other.address)["dtd_queued_jobs", ()] == 3
    other.close()


def test_ipv6(scrape):
    made = Exposition(Address("::1", 0))
    try:
        made.start()
    except ConfigError:
        pytest.skip("no IPv6 here")
    made.publish([Sample("dtd_queued_jobs", (), 3)])
    assert scrape(made.address)["dtd_queued_jobs", ()] == 3
    made.close()


def test_a_port_that_is_taken_is_named(exposition):
    with pytest.raises(ConfigError, match=f"metrics: cannot listen on {exposition.address}"):
        Exposition(exposition.address).start()


def test_after_closing_the_port_is_free_and_the_thread_gone(exposition):
    exposition.close()
    assert "metrics" not in {thread.name for thread in threading.enumerate()}
    again = Exposition(exposition.address)
    again.start()
    again.close()


def test_one_that_was_never_started_can_be_closed():
    Exposition(LOOPBACK).close()


def test_whoever_asks_nothing_is_given_up(monkeypatch, scrape):
    monkeypatch.setattr(module._Handler, "timeout", 0.05)
    made = Exposition(LOOPBACK)
    made.start()
    with socket.create_connection((made.address.host, made.address.port)) as silent:
        assert scrape(made.address)["process_resident_memory_bytes", ()] > 0
        assert silent.recv(1) == b""
    made.close()


def test_whoever_hangs_up_is_nobodys_trouble(exposition, scrape, capfd):
    exposition.publish(Sample("dtd_job_step", (f"j-{n}" * 50,), n) for n in range(2000))
    for _attempt in range(5):
        with socket.create_connection((exposition.address.host, exposition.address.port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            rude.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert len(scrape(exposition.address)) >= 2000
    assert capfd.readouterr().err == ""
