"""Heartbeats and lifelines: a member that is silent, or dead, is noticed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dtd.address import Address
from dtd.exchange.schedule.neighbours import Neighbour
from dtd.net.liveness import PIECE_BYTES, LinkHeartbeats
from dtd.wire import messages as m
from dtd.wire.session import DataCredential, Session, welcome

INTERVAL_S = 0.25
SILENCE_S = 1.5
TICK_S = SILENCE_S / 12
BEAT_BYTES = 48

NEXT = Neighbour(m.Role.RING, 1, opens=True)
PREVIOUS = Neighbour(m.Role.RING, 3, opens=False)
FAR_OUT = Neighbour(m.Role.RING, 2, opens=True, beats=False)
FAR_IN = Neighbour(m.Role.RING, 2, opens=False, beats=False)


class Counters:
    """A link as the pulse sees it."""

    def __init__(self):
        self.received_bytes = 0
        self.received_frames = 0
        self.held = False
        self.queued = 0
        self.sent_bytes = 0
        self.sent = []

    def queued_bytes(self):
        return self.queued

    def send(self, message, payload=b""):
        self.sent.append(message)

    def hear_beat(self):
        self.received_bytes += BEAT_BYTES
        self.received_frames += 1


class Watched:
    """A pulse, its two links, and a clock that only the test moves."""

    def __init__(self, *neighbours, attached=(NEXT, PREVIOUS)):
        self.silent = []
        self.links = {neighbour: Counters() for neighbour in attached}
        self.now = 100.0
        self.pulse = LinkHeartbeats(
            generation=3,
            beat_interval_s=INTERVAL_S,
            silence_s=SILENCE_S,
            silent=lambda neighbour, now: self.silent.append((neighbour, now)),
            neighbours=neighbours or (NEXT, PREVIOUS),
        )
        self.pulse.watch(self.now)
        for neighbour, link in self.links.items():
            self.pulse.attach(neighbour, link)

    def pass_by(self, seconds, *, each=lambda: None):
        """Let time pass, a tick at a time, until somebody is silent."""
        for _ in range(round(seconds / TICK_S)):
            each()
            self.now += TICK_S
            self.pulse.look(self.now)
            if self.silent:
                return


@pytest.mark.parametrize(("heard", "silent"), [(NEXT, PREVIOUS), (PREVIOUS, NEXT)])
def test_a_peer_that_is_silent_is_reported_within_the_limit_and_two_looks(heard, silent):
    watched = Watched()
    watched.pass_by(3.0, each=watched.links[heard].hear_beat)
    [(neighbour, now)] = watched.silent
    assert neighbour == silent
    assert SILENCE_S < now - 100.0 <= SILENCE_S + 2 * TICK_S + 1e-9
    assert watched.pulse.silence_s(silent, now) > SILENCE_S
    assert not watched.pulse.trickles(silent, now)


def test_a_long_chunk_on_a_slow_link_is_a_sign_of_life():
    watched = Watched()

    def receive():
        watched.links[NEXT].hear_beat()
        watched.links[PREVIOUS].received_bytes += PIECE_BYTES // 8

    watched.pass_by(10.0, each=receive)
    assert watched.silent == []


def test_a_link_that_brings_frames_one_way_beats_one_way():
    watched = Watched(FAR_OUT, FAR_IN, attached=(FAR_OUT, FAR_IN))
    watched.pass_by(3.0)
    assert [neighbour for neighbour, _ in watched.silent] == [FAR_IN]
    assert watched.links[FAR_OUT].sent
    assert not watched.links[FAR_IN].sent


def test_a_rank_that_does_not_answer_is_found_on_every_link():
    watched = Watched(FAR_OUT, attached=())
    watched.pass_by(3.0)
    assert [neighbour for neighbour, _ in watched.silent] == [FAR_OUT]


def test_no_beat_where_frames_are_sent_anyway():
    watched = Watched(attached=(NEXT, PREVIOUS))

    def work():
        for link in watched.links.values():
            link.hear_beat()
        watched.links[NEXT].sent_bytes += 24

    watched.pass_by(3.0, each=work)
    assert not watched.links[NEXT].sent
    assert len(watched.links[PREVIOUS].sent) >= 3.0 / (INTERVAL_S + TICK_S)


PATIENCE_S = 60.0
SECRET = b"s" * 32


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


def address_of(server: socket.socket) -> Address:
    return Address(*server.getsockname())


def entry(generation: int) -> DataCredential:
    return DataCredential(secret=SECRET, generation=generation)


def greeted(server: socket.socket) -> tuple[socket.socket, int]:
    """The connection, once it is welcome and has proved itself, and the generation it stated."""
    link, _ = server.accept()
    link.settimeout(PATIENCE_S)
    session = Session(accepts=frozenset({m.Role.LIFELINE}), random_bytes=bytes)
    [hello] = received(link, session)
    assert isinstance(hello, m.Hello)
    link.sendall(session.welcome(welcome("w"), secret=SECRET))
    assert received(link, session) == [m.Prove()]
    return link, hello.generation


def received(link: socket.socket, session: Session) -> list[m.Message]:
    """The next message, as soon as it is whole."""
    arrived: list[m.Message] = []
    while not arrived:
        data = link.recv(4096)
        assert data
        arrived = [message for message, _payload in session.feed(data)]
    return arrived


CHILD = """
import socket, sys
from dtd.address import Address
from dtd.wire.session import DataCredential
from dtd.net.liveness import Lifeline
target = Address("127.0.0.1", int(sys.argv[1]))
plain = socket.create_connection((target.host, target.port))
lifeline = Lifeline()
lifeline.start()
lifeline.hold([target], name="w", entry=DataCredential(secret=b"s" * 32), timeout_s=10.0)
ballast = bytearray(b"x") * (300 << 20)
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_killed_process_cuts_its_lifeline(server: socket.socket) -> None:
    port = str(address_of(server).port)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        plain, _ = server.accept()
        link, _ = greeted(server)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGKILL)
        assert link.recv(1) == b""
    finally:
        child.kill()
        child.communicate()
    link.close()
    plain.close()
