"""Frames: whole, byte by byte, with something after them, and damaged in every way."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.frames import (
    MAGIC,
    MAX_HEADER_BYTES,
    PREFIX,
    PREFIX_BYTES,
    Frame,
    FrameDecoder,
    frame_bytes,
)

HEADER = msgpack.packb({"t": 1, "name": "w0"})


def prefix(
    *, version: int = 1, flags: int = 1, reserved: int = 0, header: int = 0, payload: int = 0
) -> bytes:
    return PREFIX.pack(MAGIC, version, flags, reserved, header, payload)


def seen(decoded: Iterator[Frame]) -> list[tuple[dict[str, Any], bytes]]:
    return [(frame.header, bytes(frame.payload)) for frame in decoded]


def in_pieces(decoder: FrameDecoder, data: bytes, size: int) -> list[tuple[dict[str, Any], bytes]]:
    found = []
    for start in range(0, len(data), size):
        found += seen(decoder.feed(data[start : start + size]))
    return found


def refused(data: bytes, decoder: FrameDecoder | None = None) -> ProtocolError:
    """The error that these bytes lead to, which must not depend on how they are cut."""
    decoder = decoder or FrameDecoder()
    with pytest.raises(ProtocolError) as whole:
        seen(decoder.feed(data))
    with pytest.raises(ProtocolError) as pieces:
        in_pieces(FrameDecoder(max_payload_bytes=decoder.max_payload_bytes), data, 1)
    assert (whole.value.code, str(whole.value)) == (pieces.value.code, str(pieces.value))
    return whole.value


# --- truncated -------------------------------------------------------------------------------


def test_every_truncation_is_noticed_at_the_end_and_not_before() -> None:
    data = frame_bytes(HEADER, b"payload")
    for length in range(1, len(data)):
        decoder = FrameDecoder()
        assert seen(decoder.feed(data[:length])) == []
        with pytest.raises(ProtocolError) as error:
            decoder.end()
        assert error.value.code is ErrorCode.TRUNCATED
        with pytest.raises(ProtocolError, match="ended inside a frame"):
            decoder.next_buffer()


# --- refused before anything is allocated ----------------------------------------------------


@pytest.mark.parametrize("wrong", range(4))
def test_wrong_magic_is_noticed_at_its_first_wrong_byte(wrong: int) -> None:
    data = MAGIC[:wrong] + bytes([MAGIC[wrong] ^ 0x20])
    decoder = FrameDecoder()
    assert seen(decoder.feed(data[:-1])) == []
    error = refused(data)
    assert error.code is ErrorCode.BAD_MAGIC
    assert data.hex() in str(error)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions_are_refused(version: int) -> None:
    error = refused(prefix(version=version))
    assert error.code is ErrorCode.BAD_VERSION
    assert error.remedy


@pytest.mark.parametrize(
    ("flags", "reserved"), [(0, 0), (2, 0), (3, 0), (0x81, 0), (1, 1), (1, 0x8000)]
)
def test_unknown_flags_are_refused(flags: int, reserved: int) -> None:
    assert refused(prefix(flags=flags, reserved=reserved)).code is ErrorCode.BAD_FLAGS


@pytest.mark.parametrize("header", [MAX_HEADER_BYTES + 1, 2**31, 2**32 - 1])
def test_oversize_header_is_refused_before_allocation(header: int) -> None:
    data = prefix(header=header)
    assert refused(data).code is ErrorCode.HEADER_TOO_LARGE
    assert peak_bytes(lambda: refused(data)) < 50_000


@pytest.mark.parametrize("payload", [101, 2**31, 2**32 - 1])
def test_oversize_payload_is_refused_before_allocation(payload: int) -> None:
    data = prefix(header=1, payload=payload)
    decoder = FrameDecoder(max_payload_bytes=100)
    assert refused(data, decoder).code is ErrorCode.PAYLOAD_TOO_LARGE
    fresh = FrameDecoder(max_payload_bytes=100)
    assert peak_bytes(lambda: refused(data, fresh)) < 50_000


def peak_bytes(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- damaged ---------------------------------------------------------------------------------


def whole_stream(data: bytes) -> None:
    """Decode all there will ever be."""
    decoder = FrameDecoder()
    seen(decoder.feed(data))
    decoder.end()


def test_every_flipped_byte_is_noticed() -> None:
    data = frame_bytes(HEADER, b"payload")
    for index in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[index] ^= mask
            with pytest.raises(ProtocolError) as error:
                whole_stream(bytes(damaged))
            if index >= PREFIX_BYTES + len(HEADER):
                assert error.value.code is ErrorCode.BAD_TAG


@pytest.mark.parametrize(
    "data", [b"G", prefix(version=9), frame_bytes(b"\x90"), frame_bytes(HEADER)[:-1] + b"\0"]
)
def test_dead_decoder_raises_the_same_error_again(data: bytes) -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError) as first:
        seen(decoder.feed(data))
    for again in (
        decoder.next_buffer,
        lambda: seen(decoder.received(1)),
        lambda: seen(decoder.resume()),
        lambda: seen(decoder.feed(frame_bytes(HEADER))),
    ):
        with pytest.raises(ProtocolError) as error:
            again()
        assert error.value is first.value
    decoder.end()
