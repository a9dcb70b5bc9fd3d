"""A frame's header: one msgpack map with text keys, decoded in bounded memory.

Pure; independent of the messages.  The map goes to `dtd.wire.messages`, which reads it field by
field.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from dtd.errors import ErrorCode, ProtocolError

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_NESTING: Final = 8

Header = dict[str, Any]


def decode_header(data: bytes) -> Header:
    """Decode a header's msgpack map.

    Raises:
        ProtocolError: BAD_HEADER when it is not one map with text keys, nested at most
            `MAX_NESTING` deep, with nothing after it.
    """
    header = _flat_map(data)
    return _any_map(data) if header is None else header


def _flat_map(data: bytes) -> Header | None:
    """The map, if it holds no maps and no lists with items, as most headers; otherwise None.

    One pass over the bytes is enough: msgpack allocates memory by claimed length only for the
    items of a list, and these lists have none.
    """
    try:
        header = msgpack.unpackb(data, ext_hook=_no_extensions, max_array_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, TypeError):
        return None
    if type(header) is not dict:
        return None
    for key, value in header.items():
        if type(key) is not str or type(value) is dict:
            return None
    return header


def _any_map(data: bytes) -> Header:
    try:
        # The skip allocates nothing: containers that claim more items than follow fail here, and
        # not after memory for all the claimed items, level by level, has been set aside.
        walker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
        walker.feed(data)
        walker.skip()
        header = msgpack.unpackb(data, raw=False, ext_hook=_no_extensions, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, TypeError) as error:
        raise ProtocolError(
            ErrorCode.BAD_HEADER,
            f"header is not valid msgpack: {str(error) or type(error).__name__}",
        ) from None
    if not isinstance(header, dict):
        raise ProtocolError(ErrorCode.BAD_HEADER, f"header is a {type(header).__name__}, not a map")
    _check_nesting(header, 1)
    return header


def _no_extensions(code: int, _data: bytes) -> None:
    raise ValueError(f"extension type {code} is not allowed")


def _check_nesting(value: dict[Any, Any] | list[Any], depth: int) -> None:
    if depth > MAX_NESTING:
        raise ProtocolError(
            ErrorCode.BAD_HEADER, f"header is nested more than {MAX_NESTING} levels deep"
        )
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise ProtocolError(
                ErrorCode.BAD_HEADER, f"a header key is {type(key).__name__}, not text"
            )
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_nesting(item, depth + 1)
