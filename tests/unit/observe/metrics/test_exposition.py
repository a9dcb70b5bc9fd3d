"""The endpoint: what is published is scraped, and nobody who connects can hurt."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

import dtd.observe.metrics.endpoint as module
from dtd.address import Address
from dtd.errors import ConfigError
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


def test_a_label_is_one_short_line_of_what_can_be_shown(exposition, scrape):
    hostile = 'j"\n# HELP forged\nforged 1\x1b[2J\x9b\u202e\u2028' + "x" * 999
    exposition.publish([Sample("dtd_job_step", (hostile,), 7)])
    ((_name, labels),) = [key for key in scrape(exposition.address) if key[0] == "dtd_job_step"]
    ((_label, shown),) = labels
    assert shown.isprintable()
    assert len(shown) == module.MAX_LABEL_CHARACTERS


def test_a_port_that_is_taken_is_named(exposition):
    with pytest.raises(ConfigError, match=f"metrics: cannot listen on {exposition.address}"):
        Exposition(exposition.address).start()


def call(exposition: Exposition) -> socket.socket:
    return socket.create_connection((exposition.address.host, exposition.address.port), PATIENCE_S)


def answering() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def patient(monkeypatch) -> Iterator[Exposition]:
    """One that bears with who asks nothing for so long that nobody takes it for a slow answer."""
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 2 * PATIENCE_S)
    monkeypatch.setattr(module._Handler, "timeout", 2 * PATIENCE_S)
    made = Exposition(LOOPBACK)
    made.start()
    yield made
    made.close()


def test_a_caller_that_takes_all_places_makes_way(patient, scrape):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(call(patient)) for _ in range(3 * module.AT_ONCE)]
        begun_s = time.monotonic()
        assert scrape(patient.address)["process_resident_memory_bytes", ()] > 0
        assert held[0].recv(1) == b"", "the oldest one was cut"
        assert time.monotonic() - begun_s < PATIENCE_S
        assert answering() <= module.AT_ONCE


def test_a_caller_that_trickles_is_given_up_as_well(monkeypatch):
    monkeypatch.setattr(module, "REQUEST_TIMEOUT_S", 0.3)
    made = Exposition(LOOPBACK)
    made.start()
    with call(made) as slow:
        slow.settimeout(0.02)
        until_s, ended = time.monotonic() + PATIENCE_S, False
        while not ended and time.monotonic() < until_s:
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"G")
            with contextlib.suppress(TimeoutError):
                ended = _ended(slow)
        assert ended
    made.close()


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


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


def test_without_a_cluster_there_are_no_members():
    with pytest.raises(ConfigError, match=r"metrics_for = .members. needs a credential"):
        Exposition(LOOPBACK, lambda: members_only(None)).start()


def test_a_caller_that_hangs_up_is_nobodys_trouble(exposition, scrape, capfd):
    exposition.publish(Sample("dtd_job_step", (f"j-{n}" * 50,), n) for n in range(2000))
    for _attempt in range(5):
        with socket.create_connection((exposition.address.host, exposition.address.port)) as rude:
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            rude.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert len(scrape(exposition.address)) >= 2000
    assert capfd.readouterr().err == ""
