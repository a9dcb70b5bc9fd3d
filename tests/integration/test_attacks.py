"""Hostile callers at a real coordinator beyond loopback: not heard, and not obeyed.

What a wrong, foreign or revoked credential can do is in test_security.py, and what a recorded
handshake on the data port is worth in the unit tests of the data server.  Here are the callers who
break the protocol: before they have shown who they are, and with a good credential in hand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgpack
import pytest

from dtd.address import Address
from dtd.cluster.status import MAX_DIAGNOSTICS
from dtd.errors import DtdError, RequestRefused
from dtd.net.clients.control_client import ControlClient
from dtd.net.clients.join_client import join
from dtd.net.limits import PER_ADDRESS, RATE_PER_S
from dtd.security.authority import Authority
from dtd.security.credential import Credential, bare_client_context
from dtd.security.token import Token
from dtd.wire import messages as m
from dtd.wire.frames import MAGIC, PREFIX, PROTOCOL_VERSION, frame_bytes
from dtd.wire.session import hello
from dtd.wire.tags import FLAG_XXH3
from tests.integration.beyond import Beyond

pytestmark = pytest.mark.integration

T = TypeVar("T")
PATIENCE = 60.0
GROWTH_BYTES = 48 * 1024 * 1024
"""The coordinator's growth limit under all of this; one declared payload alone would be 4 GiB."""


class Coordinator(Beyond):
    def credential(self, role: str, name: str) -> Credential:
        token = self.token(role)
        return self.patiently(lambda: self.join(name, token=token))

    def call(self, context: ssl.SSLContext | None = None) -> socket.socket:
        """Over TLS; without a credential unless the context has one."""

        def connect() -> socket.socket:
            plain = socket.create_connection((self.address.host, self.address.port), PATIENCE)
            return (context or bare_client_context()).wrap_socket(plain)

        return self.patiently(connect)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path_factory.mktemp("attacked"))
    yield made
    made.stop()


def prefix(header_bytes: int, payload_bytes: int = 0) -> bytes:
    return PREFIX.pack(MAGIC, PROTOCOL_VERSION, FLAG_XXH3, 0, header_bytes, payload_bytes)


def nested(depth: int) -> bytes:
    return b"\x81\xa1a" * depth + b"\xc0"


BOMBS: dict[str, bytes] = {
    "noise": bytes(range(256)) * 64,
    "a header of 4 GiB": prefix(2**32 - 1),
    "a payload of 4 GiB": prefix(3, 2**32 - 1) + b"\x81\xa1t",
    "deep nesting": frame_bytes(nested(20_000)),
    "a map of 2^32 items": frame_bytes(b"\xdf\xff\xff\xff\xff"),
    "a list of 2^32 items": frame_bytes(b"\x81\xa1t\xdd\xff\xff\xff\xff"),
    "lists within lists that claim much": frame_bytes(b"\x81\xa1t" + b"\xdc\xff\xff" * 10_000),
    "text of 4 GiB": frame_bytes(b"\x81\xa1t\xdb\xff\xff\xff\xff"),
    "an extension": frame_bytes(msgpack.packb({"t": msgpack.ExtType(1, b"x")})),
    "a key that is no text": frame_bytes(msgpack.packb({1: 2})),
    "an unknown message": frame_bytes(msgpack.packb({"t": 255})),
    "a message without fields": frame_bytes(msgpack.packb({"t": 1})),
    "a damaged frame": m.message_bytes(m.GetStatus())[:-1] + b"\0",
    "a message that must not come yet": m.message_bytes(m.GetStatus()),
    "half a frame": m.message_bytes(m.GetStatus())[:9],
}


def ends(connection: socket.socket, words: bytes) -> None:
    """Say this, and see the other side end the connection, with a word of complaint at most."""
    answered = 0
    with connection, contextlib.suppress(ConnectionError, ssl.SSLError):
        connection.settimeout(PATIENCE)
        connection.sendall(words)
        if words is BOMBS["half a frame"]:
            connection.close()
            return
        while data := connection.recv(65536):
            answered += len(data)
            assert answered < 65536


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("who", ["stranger", "stranger who says hello", "worker", "operator"])
def test_a_bomb_is_the_end_of_its_connection_and_of_nothing_else(coordinator, who, bomb):
    before = coordinator.resident_bytes()
    if who.startswith("stranger"):
        connection = coordinator.call()
        role = m.Role.JOIN
    else:
        path = coordinator.directory / f"{who}-0.credential"
        known = Credential.load(path) if path.exists() else coordinator.credential(who, f"{who}-0")
        connection = coordinator.call(known.client_context())
        role = m.Role.WORKER if who == "worker" else m.Role.CTL
    greets = who != "stranger"
    words = BOMBS[bomb]
    if role is m.Role.CTL and words is BOMBS["a message that must not come yet"]:
        words = m.message_bytes(m.Heartbeat(state="idle"))  # what an operator may never say
    if greets:
        connection.sendall(m.message_bytes(hello(role, f"{who}-0")))
    ends(connection, words)
    assert coordinator.is_well()
    assert coordinator.resident_bytes() - before < GROWTH_BYTES


def test_a_recorded_conversation_means_nothing_the_second_time(coordinator):
    """Every byte that an operator has sent, sent again: TLS does not even finish its handshake."""
    sent: list[bytes] = []
    relay = socket.create_server(("127.0.0.1", 0))

    def pass_on() -> None:
        near, _ = relay.accept()
        far = socket.create_connection((coordinator.address.host, coordinator.address.port))
        back = threading.Thread(target=copy, args=(far, near, lambda _data: None))
        back.start()
        copy(near, far, sent.append)
        back.join()
        near.close()
        far.close()

    passing = threading.Thread(target=pass_on)
    passing.start()
    context = coordinator.operator.client_context()
    through = Address(*relay.getsockname())
    coordinator.call().close()
    assert coordinator.child.wait(2 / RATE_PER_S) is None  # so that there is room for the relay's
    with ControlClient(through, timeout_s=PATIENCE, context=context) as client:
        token = client.request(m.CreateToken(role="viewer", life_s=60))["id"]
        client.request(m.RevokeToken(id=token))
    passing.join(PATIENCE)
    relay.close()
    before = {one["id"] for one in coordinator.ask(m.ListTokens())["tokens"]}
    again = socket.create_connection((coordinator.address.host, coordinator.address.port))
    ends(again, b"".join(sent))
    assert {one["id"] for one in coordinator.ask(m.ListTokens())["tokens"]} == before
    assert coordinator.is_well()


def copy(source: socket.socket, target: socket.socket, note: Callable[[bytes], object]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            note(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_those_that_dawdle_are_dropped_while_others_are_served(coordinator):
    """Slow-loris: some say nothing, some say half of a TLS handshake; none outlasts its time."""
    where = coordinator.address.host, coordinator.address.port
    dawdlers = [socket.create_connection(where, PATIENCE) for _ in range(PER_ADDRESS)]
    for one in dawdlers[::2]:
        one.sendall(b"\x16\x03\x01\x02\x00\x01")
    assert coordinator.ask(m.GetStatus())["schema"] == 1
    for one in dawdlers:
        one.settimeout(PATIENCE)
        with one, contextlib.suppress(ConnectionError):
            while one.recv(4096):
                pass
    assert coordinator.is_well()


def test_a_package_bomb_is_refused(coordinator):
    for size in (2**40, 0):
        with pytest.raises(RequestRefused):
            coordinator.ask(m.PutPackage(digest="0" * 64, size=size, offset=0))
    with pytest.raises(RequestRefused):
        coordinator.ask(m.PutPackage(digest="../../etc/passwd", size=1, offset=0))
    assert coordinator.is_well()


def test_a_rogue_coordinator_learns_nothing(coordinator, tmp_path):
    """Whoever answers in its place without its key is left before the first word."""
    rogue = Authority.create(tmp_path / "pki")
    context = rogue.server_context()
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            plain, _ = listener.accept()
            with plain, contextlib.suppress(OSError):
                plain.settimeout(PATIENCE)
                made = context.wrap_socket(plain, server_side=True)
                heard.append(made.recv(65536))

        answering = threading.Thread(target=answer)
        answering.start()
        with pytest.raises(DtdError, match="its certificate is from another cluster"):
            ControlClient(
                Address(*listener.getsockname()),
                timeout_s=PATIENCE,
                context=coordinator.operator.client_context(),
            )
        answering.join(PATIENCE)
    assert heard in ([], [b""])


def test_the_prefix_is_what_it_is_taken_for():
    assert struct.unpack("!4sBBHII", prefix(7, 9)) == (b"DTDF", PROTOCOL_VERSION, 1, 0, 7, 9)


def test_guessing_tokens_leaves_few_traces_and_lets_nobody_in(coordinator):
    before = coordinator.child.log_path.stat().st_size
    with coordinator.client() as client:
        # Asked on a connection that stands: new ones from this address are turned away for a while.
        known = len(client.request(m.ListCredentials())["credentials"])
        made = client.request(m.CreateToken(role="operator", life_s=60))
        token = Token.parse(made["token"])
        for number in range(60):
            guess = dataclasses.replace(token, secret=f"{number:032d}")
            with pytest.raises(DtdError):
                join(guess, name="guesser", path=coordinator.directory / "guess")
        diagnostics = client.request(m.GetStatus())["troubles"]
        assert len(client.request(m.ListCredentials())["credentials"]) == known
    assert len(diagnostics) <= MAX_DIAGNOSTICS
    assert "turned-away" in {one["kind"] for one in diagnostics}
    assert not (coordinator.directory / "guess").exists()
    assert coordinator.child.log_path.stat().st_size - before < 16 * 1024
