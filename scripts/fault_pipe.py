"""One direction of one connection through `scripts.fault_proxy`, and what may befall it.

Bytes are read, wait as long as they are told to, and are delivered in order; so are the end of the
stream and a reset, which on a silent link nobody hears of either.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Final

READ_BYTES: Final = 256 * 1024
_MAX_WAITING_PIECES: Final = 16
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
    """What happens just now to the bytes of one direction, on all connections.

    Attributes:
        silent_for: callers whose bytes are held; "" stands for everybody's.
        cleared: set, and replaced, whenever silence ends.
        delay_s: how much later each byte is delivered.
        bytes_per_s: no faster than this; 0 is as fast as it goes.
        flip: the next bit to be turned over.
    """

    silent_for: set[str] = field(default_factory=set)
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    flip: Flip | None = None

    def clear(self) -> None:
        """Fine weather again; what was held goes on its way."""
        self.delay_s = self.bytes_per_s = 0.0
        for caller in [*self.silent_for]:
            self.unsilence(caller)

    def unsilence(self, caller: str) -> None:
        """Those who were held because of this caller's silence look again."""
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
    """From a reader to a writer.

    Args:
        weather: of this direction.
        caller: whose connection it is.
        reader: where bytes come from.
        writer: where they go.
    """

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
        self._pieces: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue(
            _MAX_WAITING_PIECES
        )

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
        due_s = asyncio.get_running_loop().time() + self._weather.delay_s
        await self._pieces.put((due_s, piece))

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
