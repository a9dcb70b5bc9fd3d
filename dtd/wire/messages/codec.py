"""Encodes messages as a frame's msgpack map and decodes them (protocol.md, "Frames").

Unknown fields are ignored; unknown types are rejected.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire import frames
from dtd.wire.fields import parse_record, record_values
from dtd.wire.header import Header
from dtd.wire.messages.registry import Message, message_name, message_number, message_type
from dtd.wire.tags import CHECKSUM, Tag

TYPE_KEY: Final = "t"


def encode_header(message: Message) -> bytes:
    """The msgpack map of a message, its number under "t".

    Text that is not valid Unicode (a file name in a traceback) is sent with question marks.

    Raises:
        LocalProtocolError: the receiver would reject a field's value.
    """
    kind = type(message)
    values = {TYPE_KEY: message_number(kind)}
    try:
        return _packed(record_values(message, where=message_name(kind), into=values))
    except (ProtocolError, ValueError, TypeError, OverflowError) as error:
        raise LocalProtocolError(f"{message_name(kind)} cannot be sent: {error}") from None


def _packed(values: dict[str, Any]) -> bytes:
    try:
        packed: bytes = msgpack.Packer().pack(values)
    except UnicodeEncodeError:
        packed = msgpack.Packer(unicode_errors="replace").pack(values)
    return packed


def decode_message(header: Header) -> Message:
    """The message of a decoded header.

    Raises:
        ProtocolError: UNKNOWN_TYPE or BAD_FIELD.
    """
    number = header.get(TYPE_KEY)
    kind = message_type(number)
    if kind is None:
        shown = number if isinstance(number, int) else type(number).__name__
        raise ProtocolError(ErrorCode.UNKNOWN_TYPE, f"message type {shown} is not known")
    message: Message = parse_record(kind, header, where=message_name(kind))
    return message


def message_bytes(message: Message, payload: bytes = b"", tag: Tag = CHECKSUM) -> bytes:
    """A complete small frame that carries a message."""
    return frames.frame_bytes(encode_header(message), payload, tag)
