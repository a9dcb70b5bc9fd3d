"""Links between workers that code payloads of floats (protocol.md, "Coded payloads").

They carry the chunks of ranks, and the ranges of a state or a file that another worker fetches.
Node and machine know nothing of it: a coded chunk is placed, and arrives, like the plain one.
Coding runs in threads.  Chunks, small gathers and ranges keep their order, all else overtakes those
that wait to be coded.  While a payload is decoded, the next ones are received.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np

from dtd.errors import DtdError, ErrorCode, ProtocolError
from dtd.exchange.schedule.coding_choice import LinkChoice, Mode, StepTrial
from dtd.net.link import Link
from dtd.planes import ELEMENT_BYTES, MIN_CODED_BYTES, PLANES, PlaneCoder, check_coded
from dtd.wire import messages as m
from dtd.wire.frames import HOLD, Hold
from dtd.wire.session import Received

ARRIVED_FRAMES: Final = 4
"""So many coded frames are received before the first of them is decoded; then reading pauses."""

READY_FRAMES: Final = 2
"""So many coded frames are ready when the kernel has taken all that it was given."""

GIVEN_BYTES: Final = 1024 * 1024
"""With more than this queued, the transport is given no more of what waits."""

LOOK_BYTES: Final = 1024 * 1024
"""After sending so much the rate of the link is read from the kernel."""

_THREADS: Final = 2

_CODED: Final = (m.Chunk, m.FetchData)
_IN_ORDER: Final = (*_CODED, m.SmallGather)


class _Arrived(NamedTuple):
    """A decoded payload, which is perhaps forwarded at once."""

    place: memoryview
    code: memoryview
    item_bytes: int


class Coding:
    """The threads and the choices that several links share; belongs to the event loop.

    Attributes:
        arrived: the decoded payload that is being handed over.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode
        self.arrived: _Arrived | None = None
        self._trial = StepTrial()
        self._step = -1
        self._wanted = Counter[bool]()
        self._threads: ThreadPoolExecutor | None = None

    def allows(self, step: int) -> bool:
        """Whether a chunk may be coded; it begins its step unless a later one has begun."""
        if step > self._step:
            self._step = step
            mostly = self._wanted[True] > self._wanted[False]
            self._trial.next_step(time.monotonic(), coded=mostly)
            self._wanted.clear()
        return self._trial.codes or self.mode == "on"

    def chosen(self, wanted: bool) -> None:
        """A link has chosen for a chunk that may be coded."""
        self._wanted[wanted] += 1

    def run(self, function: Callable[..., Any], *arguments: object) -> asyncio.Future[Any]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="coder")
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Return when no thread reads or writes a payload any more: a few milliseconds."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def _encode(
    coder: PlaneCoder, payload: memoryview, item_bytes: int
) -> tuple[memoryview | None, float]:
    """The code, if it is shorter, and how long that took in seconds."""
    begun_s = time.monotonic()
    return coder.encode(payload, item_bytes), time.monotonic() - begun_s


@dataclass(slots=True)
class _Waiting:
    """A frame that waits, or a future that is done when those before it are gone.

    `item_bytes`: width of the elements if the payload is still to be coded, else 0.
    """

    message: m.Message | asyncio.Future[None]
    payload: bytes | memoryview = b""
    item_bytes: int = 0


class CodingLink(Link):
    """A link between workers; arguments as for `Link`.

    Attributes:
        coding: set by its endpoint before the first chunk; without it nothing is coded, and a coded
            chunk is refused.
        plain_bytes: payload bytes passed to `send`, before coding.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.coding: Coding | None = None
        self.plain_bytes = 0
        self._choice: LinkChoice | None = None
        self._coder = PlaneCoder()
        self._decoder = PlaneCoder()
        self._peer_decodes = False
        self._waiting: deque[_Waiting] = deque()
        self._is_encoding = False
        self._is_decoding = False
        self._drains = False
        self._arrived: deque[tuple[m.CodedChunk, memoryview]] = deque()
        self._looked_bytes = 0
        self._seen = (0, 0.0)

    def _heed(self, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, m.Hello | m.Welcome):
            self._peer_decodes = message.coding == PLANES
        super()._heed(message, payload)

    # --- sending -----------------------------------------------------------------------------

    def send(
        self, message: m.Message, payload: bytes | memoryview = b"", item_bytes: int = 0
    ) -> None:
        """Queue a frame; a payload is coded only if the width of its elements is given."""
        self.plain_bytes += len(payload)
        if self.closing or not isinstance(message, _IN_ORDER):
            super().send(message, payload)
            return
        frame = _Waiting(message, payload)
        if isinstance(message, _CODED) and self._wants(message, payload, item_bytes):
            assert isinstance(payload, memoryview)
            arrived = self.coding.arrived if self.coding is not None else None
            if arrived is not None and _is_same(arrived.place, payload):
                frame = _Waiting(_coded(message, len(payload), arrived.item_bytes), arrived.code)
            else:
                frame.item_bytes = item_bytes
        if self._waiting or frame.item_bytes:
            self._waiting.append(frame)
            self._advance()
        else:
            assert isinstance(frame.message, m.Message)
            super().send(frame.message, frame.payload)

    def _wants(
        self, message: m.Chunk | m.FetchData, payload: bytes | memoryview, item_bytes: int
    ) -> bool:
        if (
            self.coding is None
            or not self._peer_decodes
            or item_bytes not in ELEMENT_BYTES
            or len(payload) < MIN_CODED_BYTES
        ):
            return False
        if self._choice is None:
            self._choice = LinkChoice(self.coding.mode, same_host=self.is_same_host)
        if self.sent_bytes - self._looked_bytes >= LOOK_BYTES:
            self._looked_bytes, before = self.sent_bytes, self._seen
            self._seen = acked_bytes, busy_s = self.transmitted()
            self._choice.sent(acked_bytes - before[0], busy_s - before[1])
        if isinstance(message, m.FetchData):
            return self._choice.wants()
        if not self.coding.allows(message.step):
            return False
        wanted = self._choice.wants()
        self.coding.chosen(wanted)
        return wanted

    def drained(self) -> asyncio.Future[None] | None:
        if not self._waiting:
            return super().drained()
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(future))
        return future

    def queued_bytes(self) -> int:
        return super().queued_bytes() + sum(len(frame.payload) for frame in self._waiting)

    def _advance(self, _: object = None) -> None:
        """Give the transport what is ready, and have the next frame coded."""
        while self._waiting and not self._waiting[0].item_bytes and not self._drains:
            if super().queued_bytes() > GIVEN_BYTES:
                self._advance_when_drained()
                break
            frame = self._waiting.popleft()
            if isinstance(frame.message, m.Message):
                super().send(frame.message, frame.payload)
            else:
                _when(super().drained(), frame.message)
        near = islice(self._waiting, READY_FRAMES + 1)
        frame_to_code = next((frame for frame in near if frame.item_bytes), None)
        if frame_to_code is not None and not self._is_encoding and not self.closing:
            self._begin_encoding(frame_to_code)

    def _advance_when_drained(self) -> None:
        drained = super().drained()
        assert drained is not None
        self._drains = True
        drained.add_done_callback(self._on_drained)

    def _on_drained(self, _: object) -> None:
        self._drains = False
        self._advance()

    def _begin_encoding(self, frame: _Waiting) -> None:
        assert self.coding is not None
        self._is_encoding = True
        encoded = self.coding.run(_encode, self._coder, frame.payload, frame.item_bytes)
        encoded.add_done_callback(partial(self._on_encoded, frame))

    def _on_encoded(
        self, frame: _Waiting, future: asyncio.Future[tuple[memoryview | None, float]]
    ) -> None:
        self._is_encoding = False
        if future.cancelled() or self.closing:
            return
        if (error := future.exception()) is not None:
            self.fail(ProtocolError(ErrorCode.INTERNAL, f"a payload cannot be coded: {error!r}"))
            return
        code, coder_s = future.result()
        plain_bytes, item_bytes = len(frame.payload), frame.item_bytes
        frame.item_bytes = 0
        if code is not None:
            assert isinstance(frame.message, _CODED)
            frame.message = _coded(frame.message, plain_bytes, item_bytes)
            frame.payload = code
        assert self._choice is not None
        self._choice.coded(plain_bytes, len(frame.payload), coder_s)
        self._advance()

    # --- receiving ---------------------------------------------------------------------------

    def _place(self, message: m.Message, payload_bytes: int) -> memoryview | Hold | None:
        if isinstance(message, m.CodedChunk):
            if self.coding is None:
                raise ProtocolError(ErrorCode.WRONG_STATE, "no coded payload was agreed here")
            check_coded(payload_bytes, message.plain_bytes, message.item_bytes)
            is_full = len(self._arrived) >= ARRIVED_FRAMES
            return HOLD if is_full else np.empty(payload_bytes, np.uint8).data
        if self._arrived and isinstance(message, _IN_ORDER):
            return HOLD
        return super()._place(message, payload_bytes)

    def _pass_on(self, message: m.Message, payload: memoryview) -> None:
        if isinstance(message, m.CodedChunk):
            self._arrived.append((message, payload))
            self._decode_next()
        else:
            super()._pass_on(message, payload)

    def resume(self) -> None:
        self._decode_next()
        super().resume()

    def _decode_next(self) -> None:
        """Have the first coded frame decoded, once the handler has memory for it."""
        if self._arrived and not self._is_decoding and not self.closing:
            self._deliver(self._begin_decoding(*self._arrived[0]))

    def _begin_decoding(self, message: m.CodedChunk, code: memoryview) -> Iterator[Received]:
        """Nothing is delivered yet; raises as `link_place` does."""
        chunk = _plain(message)
        place = super()._place(chunk, message.plain_bytes)
        if isinstance(place, memoryview):
            assert self.coding is not None
            self._is_decoding = True
            arrived = _Arrived(place, code, message.item_bytes)
            decoded = self.coding.run(self._decoder.decode, code, place, message.item_bytes)
            decoded.add_done_callback(partial(self._on_decoded, chunk, arrived))
        yield from ()

    def _on_decoded(self, chunk: m.Chunk, arrived: _Arrived, future: asyncio.Future[None]) -> None:
        self._is_decoding = False
        if future.cancelled() or self.closing:
            return
        assert self.coding is not None
        self._arrived.popleft()
        self.coding.arrived = arrived
        self._deliver(_result(future, Received(chunk, arrived.place)))
        self.coding.arrived = None
        self.resume()

    # --- ending ------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for frame in waiting:
            if isinstance(frame.message, asyncio.Future) and not frame.message.done():
                frame.message.set_result(None)
        super().connection_lost(exc)


def _when(drained: asyncio.Future[None] | None, future: asyncio.Future[None]) -> None:
    """Resolve a future together with another one, or now."""

    def resolve(_: object) -> None:
        if not future.done():
            future.set_result(None)

    if drained is None:
        resolve(None)
    else:
        drained.add_done_callback(resolve)


def _result(future: asyncio.Future[None], decoded: Received) -> Iterator[Received]:
    """The decoded chunk; damaged code is an error of the link, like a false tag."""
    error = future.exception()
    if error is not None and not isinstance(error, DtdError):
        fault = f"a payload cannot be decoded: {error!r}"
        raise ProtocolError(ErrorCode.INTERNAL, fault) from error
    future.result()
    yield decoded


def _is_same(one: memoryview, other: memoryview) -> bool:
    """Whether two views are of the same memory."""
    return len(one) == len(other) and _address(one) == _address(other)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


_SHARED_FIELDS: Final = ("generation", "step", "phase", "hop", "bucket", "chunk", "source")


def _coded(
    message: m.Chunk | m.FetchData, plain_bytes: int, item_bytes: int
) -> m.CodedChunk | m.FetchData:
    if isinstance(message, m.FetchData):
        return replace(message, plain_bytes=plain_bytes, item_bytes=item_bytes)
    fields = {name: getattr(message, name) for name in _SHARED_FIELDS}
    return m.CodedChunk(**fields, plain_bytes=plain_bytes, item_bytes=item_bytes)


def _plain(chunk: m.CodedChunk) -> m.Chunk:
    return m.Chunk(**{name: getattr(chunk, name) for name in _SHARED_FIELDS})
