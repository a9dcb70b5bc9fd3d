"""A proxy with the faults of bad networks: bytes are held, delayed, limited, flipped, reset.

    proxy.silence(TO_TARGET)            # accepted, and never delivered, without any sign
    proxy.restore()                     # held bytes are delivered, in order
    flip = proxy.flip_next(TO_TARGET, after_bytes=4096)

It stands between two daemons that do not know of it: one advertises the proxy's address instead of
its own.  Bytes that are silenced are held rather than thrown away, because that is what two TCP
stacks do to an application across a dead link: nothing arrives, nothing fails, and what is still
wanted when the link is back arrives late.  Each proxy has a thread and an event loop of its own,
and all its methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from dtd.address import Address, Endpoint, SocketPath
from dtd.errors import ProtocolError
from dtd.wire.frames import MAX_HEADER_BYTES, PREFIX, PREFIX_BYTES, decode_header

READ_BYTES: Final = 256 * 1024
_MAX_WAITING_BYTES: Final = 16 << 20
"""Of one direction of a connection: 1 Gbit/s with a delay of 50 ms has 6 MiB on the way."""
_FLIPPED_BIT: Final = 0x10


@dataclass(slots=True, kw_only=True)
class Flip:
    """One bit that is to be turned over, and whether and when it was.

    Attributes:
        left_bytes: how many bytes pass before it.
        done: set when the damaged byte was passed on.
        at_s: when that was (seconds since the epoch).
    """

    left_bytes: int
    done: threading.Event = field(default_factory=threading.Event)
    at_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Weather:
    """Faults of one direction at present, on all connections.

    Attributes:
        silent_for: callers whose bytes are held; "" stands for all.
        cleared: set, and replaced, whenever silence ends.
        delay_s: delay of each byte.
        bytes_per_s: highest rate; 0 is unlimited.
        flip: the next bit to be turned over.
    """

    silent_for: set[str] = field(default_factory=set)
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    flip: Flip | None = None

    def clear(self) -> None:
        """End all faults; held bytes are sent."""
        self.delay_s = self.bytes_per_s = 0.0
        for caller in [*self.silent_for]:
            self.unsilence(caller)

    def unsilence(self, caller: str) -> None:
        """Callers that were held because of this one's silence check again."""
        self.silent_for.discard(caller)
        self.cleared.set()
        self.cleared = asyncio.Event()

    def damaged(self, data: bytes) -> bytes:
        """The bytes to deliver, one bit of them wrong if that is due."""
        flip = self.flip
        if flip is None:
            return data
        if flip.left_bytes >= len(data):
            flip.left_bytes -= len(data)
            return data
        wrong = bytearray(data)
        wrong[flip.left_bytes] ^= _FLIPPED_BIT
        self.flip = None
        flip.at_s = time.time()
        flip.done.set()
        return bytes(wrong)


class Pipe:
    """The bytes of one caller's connection in one direction."""

    def __init__(
        self,
        weather: Weather,
        caller: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._weather = weather
        self._caller = caller
        self._reader = reader
        self._writer = writer
        self._pieces: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue()
        self._waiting_bytes = 0
        self._delivered = asyncio.Event()

    async def run(self, first: bytes = b"") -> None:
        """Carry everything, `first` first; raises OSError when the sender reset the connection."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(first))
            tasks.create_task(self._deliver())

    async def _read(self, first: bytes) -> None:
        data = first or await self._next()
        while data and isinstance(data, bytes):
            await self._keep(data)
            data = await self._next()
        await self._keep(data)

    async def _next(self) -> bytes | OSError:
        try:
            return await self._reader.read(READ_BYTES)
        except OSError as error:
            return error

    async def _keep(self, piece: bytes | OSError) -> None:
        while self._waiting_bytes >= _MAX_WAITING_BYTES:
            self._delivered.clear()
            await self._delivered.wait()
        due_s = asyncio.get_running_loop().time() + self._weather.delay_s
        self._waiting_bytes += len(piece) if isinstance(piece, bytes) else 0
        self._pieces.put_nowait((due_s, piece))

    async def _deliver(self) -> None:
        while True:
            due_s, piece = await self._pieces.get()
            await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
            while self._weather.silent_for & {"", self._caller}:
                await self._weather.cleared.wait()
            if isinstance(piece, OSError):
                raise piece
            with contextlib.suppress(OSError):
                await self._write(piece)
            if not piece:
                return
            self._waiting_bytes -= len(piece)
            self._delivered.set()

    async def _write(self, piece: bytes) -> None:
        """Nothing when the receiver is gone: that is for the other direction to tell, if it can."""
        if self._writer.is_closing():
            return
        if not piece:
            self._writer.write_eof()
            return
        self._writer.write(self._weather.damaged(piece))
        await self._writer.drain()
        if self._weather.bytes_per_s:
            await asyncio.sleep(len(piece) / self._weather.bytes_per_s)


Direction = Literal["to_target", "to_caller"]
TO_TARGET: Final[Direction] = "to_target"
TO_CALLER: Final[Direction] = "to_caller"
BOTH: Final[tuple[Direction, Direction]] = (TO_TARGET, TO_CALLER)

_RESET: Final = struct.pack("ii", 1, 0)

T = TypeVar("T")


class FaultProxy:
    """One listening address in front of one target.

    Args:
        listen: where callers connect, over TCP (port 0 for a free one) or on a socket of this host.
        target: where their bytes go.
        enter: called once in the proxy's own thread before it opens any socket.
    """

    def __init__(
        self, listen: Endpoint, target: Endpoint, *, enter: Callable[[], None] | None = None
    ) -> None:
        self.address = listen
        self._target = target
        self._enter = enter
        self._loop: asyncio.AbstractEventLoop
        self._weather: dict[Direction, Weather]
        self._stop: asyncio.Event
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"proxy {target}", daemon=True)

    def start(self) -> None:
        """Listen; raises OSError when that cannot be."""
        self._thread.start()
        self._ready.result()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # --- faults ------------------------------------------------------------------------------

    def silence(self, *directions: Direction, caller: str = "") -> None:
        """Deliver nothing any more, without any sign; of one caller or of all."""

        def act() -> None:
            for direction in directions or BOTH:
                self._weather[direction].silent_for.add(caller)

        self._do(act)

    def unsilence(self, *directions: Direction, caller: str = "") -> None:
        """Undo `silence` with the same arguments; held bytes are delivered."""

        def act() -> None:
            for direction in directions or BOTH:
                self._weather[direction].unsilence(caller)

        self._do(act)

    def restore(self) -> None:
        """Undo all silence, delay and narrowness."""

        def act() -> None:
            for weather in self._weather.values():
                weather.clear()

        self._do(act)

    def delay(self, direction: Direction, delay_s: float) -> None:
        """Deliver each byte so much later, in order."""
        self._do(lambda: setattr(self._weather[direction], "delay_s", delay_s))

    def narrow(self, direction: Direction, bytes_per_s: float) -> None:
        """Deliver no faster than this; 0 is as fast as it goes."""
        self._do(lambda: setattr(self._weather[direction], "bytes_per_s", bytes_per_s))

    def flip_next(self, direction: Direction, *, after_bytes: int = 0) -> Flip:
        """Turn one bit over in the byte after so many others, on any connection."""
        flip = Flip(left_bytes=after_bytes)
        self._do(lambda: setattr(self._weather[direction], "flip", flip))
        return flip

    def unflip(self, direction: Direction) -> None:
        """Give up a flip that has not happened yet."""
        self._do(lambda: setattr(self._weather[direction], "flip", None))

    def _do(self, action: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(action())
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                done.set_exception(error)

        self._loop.call_soon_threadsafe(act)
        return done.result()

    # --- its own thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._enter is not None:
                self._enter()
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._weather = {direction: Weather() for direction in BOTH}
        connections: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._connect(reader, writer))
            connections.add(task)
            task.add_done_callback(connections.discard)

        if isinstance(self.address, SocketPath):
            server = await asyncio.start_unix_server(accept, self.address.path, limit=READ_BYTES)
        else:
            server = await asyncio.start_server(
                accept, self.address.host, self.address.port, limit=READ_BYTES
            )
            self.address = Address(*server.sockets[0].getsockname()[:2])
        self._ready.set_result(None)
        await self._stop.wait()
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sockets = [writer]
        try:
            there = await _open(self._target)
            sockets.append(there[1])
            greeting, caller = await _greeting(reader)
            async with asyncio.TaskGroup() as pumps:
                back = Pipe(self._weather[TO_CALLER], caller, there[0], writer)
                on = Pipe(self._weather[TO_TARGET], caller, reader, there[1])
                pumps.create_task(back.run())
                pumps.create_task(on.run(greeting))
            for one in sockets:  # the rest is delivered
                one.close()
                await one.wait_closed()
        except* OSError:
            pass  # one side is gone: the other one gets the reset below
        finally:
            for one in sockets:
                _reset(one)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection as a crash does."""
    raw = writer.get_extra_info("socket")
    if raw is not None and not writer.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def _open(target: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(target, SocketPath):
        return await asyncio.open_unix_connection(target.path, limit=READ_BYTES)
    return await asyncio.open_connection(target.host, target.port, limit=READ_BYTES)


async def _greeting(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """The first frame's prefix and header, and the name in it; anything else passes unread."""
    data = await _some(reader, PREFIX_BYTES)
    if len(data) < PREFIX_BYTES:
        return data, ""
    header_bytes = int(PREFIX.unpack(data)[4])
    if header_bytes > MAX_HEADER_BYTES:
        return data, ""
    header = await _some(reader, header_bytes)
    try:
        return data + header, str(decode_header(header).get("name", ""))
    except ProtocolError:
        return data + header, ""


async def _some(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError as error:
        return error.partial
