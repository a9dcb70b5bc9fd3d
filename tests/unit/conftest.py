"""For tests of blocking code: a server that speaks from a script, and a loop in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import pytest
import uvloop

from dtd.address import Address, SocketPath
from dtd.errors import DtdError
from dtd.host.places import SOCKET_NAME
from dtd.net.link import Link
from dtd.net.local_socket import bound_socket
from dtd.wire import messages as m
from dtd.wire.data_keys import ticket_key
from dtd.wire.frames import (
    DEFAULT_MAX_PAYLOAD_BYTES,
    LARGEST_MAX_PAYLOAD_BYTES,
    PREFIX,
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    frame_bytes,
)
from dtd.wire.session import Session, welcome
from dtd.wire.tags import CHECKSUM, TAG_BYTES, Tag

T = TypeVar("T")
PATIENCE_S = 30.0

# What a script says to a message: bytes to send, or None to close the connection.
Script = Callable[[m.Message], bytes | None]


def _welcome() -> bytes:
    return m.message_bytes(
        m.Welcome(
            protocol=PROTOCOL_VERSION,
            version="9.9",
            name="scripted",
            max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES,
        )
    )


class ScriptedServer:
    """Accepts connections and answers each message as the script says.

    Attributes:
        address: a data port's.
        control: a coordinator's.
    """

    def __init__(self, directory: Path) -> None:
        self.script: Script = lambda _message: None
        self.welcome = _welcome()
        self.refuses = False
        self.secret = b"s" * 32
        self.tag: Tag = CHECKSUM
        self.received: list[m.Message] = []
        self._arrival = threading.Condition()
        self.control = SocketPath(str(directory / SOCKET_NAME))
        here = bound_socket(self.control)
        here.settimeout(None)
        here.listen()
        self._listeners = [socket.create_server(("127.0.0.1", 0)), here]
        self.address = Address(*self._listeners[0].getsockname())
        self._open: list[socket.socket] = []
        self._threads = [
            threading.Thread(target=self._accept, args=(one,)) for one in self._listeners
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, kind: type[Any]) -> None:
        """Block until a message of this kind has arrived."""
        with self._arrival:
            assert self._arrival.wait_for(
                lambda: any(isinstance(message, kind) for message in self.received), timeout=30
            )

    def close(self) -> None:
        # shutdown() wakes accept() and recv(), close() alone would not.
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        threads = []
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                break
            self._open.append(connection)
            threads.append(threading.Thread(target=self._serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _serve(self, connection: socket.socket) -> None:
        roles = frozenset({m.Role.CTL, m.Role.FETCH})
        session = Session(accepts=roles, random_bytes=os.urandom)
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(65536):
                for message, _payload in session.feed(data):
                    if isinstance(message, m.Hello):
                        connection.sendall(self._welcome(session))
                        continue
                    if isinstance(message, m.Prove):
                        continue
                    with self._arrival:
                        self.received.append(message)
                        self._arrival.notify_all()
                    answer = self.script(message)
                    if answer is None:
                        return
                    is_keyed = session.role is m.Role.FETCH and not self.refuses
                    connection.sendall(_sealed(answer, session.tag) if is_keyed else answer)

    def _welcome(self, session: Session) -> bytes:
        """A WELCOME; on a data connection, `tag` is that of all later frames."""
        if session.role is not m.Role.FETCH:
            session.welcome(welcome("scripted"))
            return self.welcome
        if self.refuses:
            return self.welcome
        said = session.welcome(
            welcome("scripted", max_payload_bytes=DEFAULT_MAX_PAYLOAD_BYTES),
            secret=self.secret,
        )
        self.tag = session.tag
        return said


def _sealed(frames: bytes, tag: Tag) -> bytes:
    """The same frames as the script made them, with the tags of this connection."""
    sealed = b""
    while len(frames) >= PREFIX_BYTES:
        *_, header_bytes, payload_bytes = PREFIX.unpack(frames[:PREFIX_BYTES])
        header_end = PREFIX_BYTES + header_bytes
        end = header_end + payload_bytes
        header, payload = frames[PREFIX_BYTES:header_end], frames[header_end:end]
        sealed += frame_bytes(header, payload, tag)
        frames = frames[end + TAG_BYTES :]
    return sealed + frames


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    """A running scripted server."""
    running = ScriptedServer(tmp_path_factory.mktemp("server"))
    yield running
    running.close()


@pytest.fixture
def result() -> Callable[[dict[str, Any]], bytes]:
    """Makes a RESULT frame of a map."""

    def make(values: dict[str, Any]) -> bytes:
        return m.message_bytes(m.Result(), msgpack.packb(values))

    return make


@pytest.fixture
def refusal() -> bytes:
    """An ERROR frame that says no."""
    return m.message_bytes(
        m.Error(code=17, message="job 'x' does not exist", remedy="see `dtdctl jobs`")
    )


@pytest.fixture
def free_socket(tmp_path: Path) -> SocketPath:
    """A coordinator's socket that is not there."""
    return SocketPath(str(tmp_path / SOCKET_NAME))


@pytest.fixture
def free_address() -> Iterator[Address]:
    """A loopback address at which nobody listens unless the test does: no one else is given it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield Address(*held.getsockname())


@pytest.fixture
def open_files() -> Callable[[], set[tuple[int, str]]]:
    """A function: (descriptor, what it is) of all that this process has open.

    To be compared as sets: what other tests have left open may close at any time.
    """

    def look() -> set[tuple[int, str]]:
        found = set()
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                found.add((int(entry.name), str(entry.readlink())))
        return found

    return look


class LoopThread:
    """An event loop of the daemons' kind, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call it there and return its result."""

        async def do() -> T:
            return function(*arguments)

        return self.run(do())

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """A running event loop in another thread."""
    made = LoopThread()
    yield made
    made.close()


@pytest.fixture
def fd_dir(tmp_path: Path) -> Path:
    """A directory in which open files can be handed over."""
    made = tmp_path / "fd_dir"
    made.mkdir(mode=0o700)
    return made


SECRET = b"s" * 32
WORKER_SECRET = b"w" * 32
NEVER_S = 1 << 40


class Peer:
    """The opening side of a link: keeps what arrives until a test asks for it."""

    def __init__(self, hello: m.Hello, secret: bytes) -> None:
        self.link = Link(self, hello=hello, secret=secret)
        self.opened = asyncio.Event()
        self._arrived: asyncio.Queue[tuple[m.Message, bytes]] = asyncio.Queue()
        self._closed: asyncio.Future[DtdError | None] = asyncio.get_running_loop().create_future()

    def link_opened(self, link: Link, message: m.Hello | m.Welcome) -> None:
        self.opened.set()

    def link_place(self, link: Link, message: m.Message, payload_bytes: int) -> None:
        return None

    def link_received(self, link: Link, message: m.Message, payload: memoryview) -> None:
        self._arrived.put_nowait((message, bytes(payload)))

    def link_closed(self, link: Link, error: DtdError | None) -> None:
        self._closed.set_result(error)

    async def welcomed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.opened.wait()

    async def next(self) -> tuple[m.Message, bytes]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._arrived.get()

    async def end(self) -> DtdError | None:
        async with asyncio.timeout(PATIENCE_S):
            return await self._closed


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., Awaitable[Peer]]]:
    """Connects to an address with a role, and says HELLO: with the secret of the generation, or
    with a ticket for a scope."""
    peers = []

    async def connect(
        address: Address, role: m.Role, *, secret: bytes = SECRET, **hello: Any
    ) -> Peer:
        if role is m.Role.FETCH and not hello:
            hello = {"scope": "state/1"}
        if "scope" in hello:
            hello.setdefault("expires_s", NEVER_S)
            secret = ticket_key(WORKER_SECRET, hello["scope"], hello["expires_s"])
        peer = Peer(
            m.Hello(
                role=role,
                name="peer",
                protocol_min=1,
                protocol_max=1,
                version="test",
                max_payload_bytes=LARGEST_MAX_PAYLOAD_BYTES,
                **hello,
            ),
            secret,
        )
        peers.append(peer)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: peer.link, address.host, address.port)
        return peer

    yield connect
    for peer in peers:
        peer.link.abort()
