"""Where payloads are received: into the memory that the sink names, or held until it names one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from dtd.wire.frames import (
    HOLD,
    PREFIX_BYTES,
    TAG_BYTES,
    Frame,
    FrameDecoder,
    Hold,
    frame_bytes,
)

HEADER = msgpack.packb({"t": 1, "name": "w0"})


def seen(decoded: Iterator[Frame]) -> list[tuple[dict[str, Any], bytes]]:
    return [(frame.header, bytes(frame.payload)) for frame in decoded]


def peak_bytes(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- placing ---------------------------------------------------------------------------------


def receive(
    decoder: FrameDecoder, data: bytes | memoryview, *, at_most: int = 1 << 30
) -> list[Frame]:
    """A kernel's part: fill the buffers that the decoder names."""
    found: list[Frame] = []
    while data and not decoder.held:
        buffer = decoder.next_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(data), at_most)
        buffer[:count] = data[:count]
        data = data[count:]
        found += decoder.received(count)
    return found


def test_large_payload_is_neither_copied_nor_staged() -> None:
    memory = memoryview(bytearray(1_000_000))
    data = frame_bytes(HEADER, bytes(1_000_000))
    decoder = FrameDecoder(lambda _header, _size: memory, staging_bytes=64)
    head = PREFIX_BYTES + len(HEADER)
    receive(decoder, data[:head])
    buffer = decoder.next_buffer()
    assert buffer.obj is memory.obj
    assert len(buffer) == 1_000_000
    assert peak_bytes(lambda: receive(decoder, memoryview(data)[head:])) < 50_000


# --- holding ---------------------------------------------------------------------------------


class Gate:
    """A sink that holds while it is closed."""

    def __init__(self) -> None:
        self.open = False
        self.memory = bytearray(7)
        self.asked = 0

    def place(self, header: dict[str, Any], payload_bytes: int) -> memoryview | Hold:
        self.asked += 1
        return memoryview(self.memory)[:payload_bytes] if self.open else HOLD


@pytest.mark.parametrize("staged", [0, 1, 7, 7 + TAG_BYTES, 7 + TAG_BYTES + 3])
def test_held_frame_goes_on_where_it_stopped(staged: int) -> None:
    gate = Gate()
    decoder = FrameDecoder(gate.place)
    data = frame_bytes(HEADER, b"payload") + frame_bytes(HEADER, b"another")
    stop = PREFIX_BYTES + len(HEADER) + staged
    assert seen(decoder.feed(data[:stop])) == []
    assert seen(decoder.resume()) == []
    assert (decoder.held, gate.asked) == (True, 2)
    gate.open = True
    found = seen(decoder.resume())
    assert not decoder.held
    found += seen(decoder.feed(data[stop:]))
    assert [payload for _, payload in found] == [b"payload", b"another"]
    assert bytes(gate.memory) == b"another"
