"""The endpoint: what is published is scraped, and nobody who connects can hurt."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator

import pytest

from dtd.address import Address
from dtd.observe.metrics.catalogue import Sample
from dtd.observe.metrics.endpoint import Exposition, members_only
from dtd.security.authority import Authority
from dtd.security.credential import Credential, bare_client_context

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 30.0


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


def call(exposition: Exposition) -> socket.socket:
    return socket.create_connection((exposition.address.host, exposition.address.port), PATIENCE_S)


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "pki")


@pytest.fixture
def members(authority):
    """An endpoint that answers members of the authority's cluster only."""
    made = Exposition(LOOPBACK, lambda: members_only(authority.server_context()))
    made.start()
    made.publish([Sample("dtd_queued_jobs", (), 3)])
    yield made
    made.close()


def viewer(directory, authority):
    path = directory / "viewer.credential"
    authority.enrol(path, "viewer", "prometheus", coordinators=(Address("127.0.0.1", 7117),))
    return Credential.load(path).client_context()


def read_as(exposition, context):
    with context.wrap_socket(call(exposition)) as secured:
        secured.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: secured.recv(65536), b"")).decode()


def test_a_member_reads_what_others_cannot(members, authority, tmp_path):
    assert "dtd_queued_jobs 3.0" in read_as(members, viewer(tmp_path, authority))
    with pytest.raises((OSError, ssl.SSLError)):
        read_as(members, bare_client_context())
    stranger = Authority.create(tmp_path / "other")
    (tmp_path / "strangers").mkdir()
    foreign = viewer(tmp_path / "strangers", stranger)
    foreign.verify_mode = ssl.CERT_NONE
    with pytest.raises((OSError, ssl.SSLError)):
        read_as(members, foreign)
    with call(members) as plain:
        plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"dtd_" not in plain.recv(65536)
