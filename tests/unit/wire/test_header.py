"""Headers: one msgpack map with text keys, or BAD_HEADER, in bounded memory."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from typing import Any

import msgpack
import pytest

from dtd.errors import ErrorCode, ProtocolError
from dtd.wire.frames import MAX_NESTING, decode_header


def refused(data: bytes) -> str:
    with pytest.raises(ProtocolError) as error:
        decode_header(data)
    assert error.value.code is ErrorCode.BAD_HEADER
    assert len(str(error.value)) < 300
    return str(error.value)


def nested(levels: int, kind: type[Any]) -> dict[str, Any]:
    """A map nested so many levels deep, itself counted."""
    value: Any = 1
    for _ in range(levels - 1):
        value = {"k": value} if kind is dict else [value]
    return {"k": value}


@pytest.mark.parametrize("value", [None, True, 1, -1, 0.5, "text", b"bytes", [], [{}]])
def test_anything_but_a_map_is_refused(value: Any) -> None:
    assert "not a map" in refused(msgpack.packb(value))


@pytest.mark.parametrize("key", [1, None, b"t", 0.5, True])
@pytest.mark.parametrize("inside", [False, True])
def test_keys_that_are_not_text_are_refused(key: Any, inside: bool) -> None:
    header = {key: 1}
    refused(msgpack.packb({"t": [header]} if inside else header))


@pytest.mark.parametrize("kind", [dict, list])
def test_nesting_is_limited(kind: type[Any]) -> None:
    deepest = nested(MAX_NESTING, kind)
    assert decode_header(msgpack.packb(deepest)) == deepest
    assert "nested" in refused(msgpack.packb(nested(MAX_NESTING + 1, kind)))
    refused(msgpack.packb(nested(MAX_NESTING + 1, kind) | {"t": 1}))


@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\xa0", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"]
)
@pytest.mark.parametrize("levels", [600, 5000])
def test_abysmal_nesting_is_refused_without_overflowing_anything(
    opening: bytes, levels: int
) -> None:
    refused(b"\x81\xa1t" + opening * levels + b"\xc0")


@pytest.mark.parametrize(
    "claim",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x05",
        b"\xdc\xff\xff",
        b"\xde\xff\xff",
    ],
    ids=["array32", "map32", "str32", "bin32", "ext32", "array16", "map16"],
)
def test_claims_beyond_the_header_allocate_nothing(claim: bytes) -> None:
    assert peak_bytes(b"\x81\xa1t" + claim) < 50_000
    assert peak_bytes(b"\x81\xa1t" + claim + bytes(60_000)) < 200_000


def peak_bytes(data: bytes) -> int:
    tracemalloc.start()
    try:
        refused(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(5, b""),
        msgpack.ExtType(5, b"x"),
        msgpack.ExtType(127, b"xy" * 8),
        msgpack.ExtType(0, b"x" * 300),
        msgpack.Timestamp(0, 0),
        msgpack.Timestamp(2**40, 5),
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    ],
    ids=repr,
)
def test_extension_types_and_timestamps_are_refused(value: Any) -> None:
    refused(msgpack.packb({"t": value}, datetime=True))
