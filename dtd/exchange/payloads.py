"""Payloads of bounded size, gathered or broadcast by exchanging words.

A word has at most 32 KiB, and all ranks take part in each exchange, so a payload is sent in pieces.
The first word contains its length.  The longest payload determines how many words follow, which
every rank knows after the first exchange.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from dtd.errors import ErrorCode, LocalProtocolError, ProtocolError
from dtd.wire.messages import MAX_WORD_BYTES

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of one rank's payload; anything larger is sent as buckets."""

_LENGTH: Final = struct.Struct("<Q")

Exchange = Callable[[bytes], list[bytes]]


def gather_payloads(
    exchange: Exchange, payload: bytes, *, limit_bytes: int = MAX_PAYLOAD_BYTES
) -> list[bytes]:
    """Block until all ranks have called this; returns all ranks' payloads, in rank order.

    Args:
        exchange: exchanges words, such as `Collective.gather`.
        payload: this rank's payload, which may be empty.
        limit_bytes: most bytes of one payload; equal on all ranks.

    Raises:
        LocalProtocolError: this rank's payload exceeds the limit.
        ProtocolError: another rank's does, or its length is not what that rank announced.
    """
    if len(payload) > limit_bytes:
        raise LocalProtocolError(f"payload of {len(payload)} bytes exceeds {limit_bytes}")
    first_bytes = MAX_WORD_BYTES - _LENGTH.size
    words = exchange(_LENGTH.pack(len(payload)) + payload[:first_bytes])
    lengths = [_length(word, limit_bytes) for word in words]
    gathered = [bytearray(word[_LENGTH.size :]) for word in words]
    for start in range(first_bytes, max(lengths), MAX_WORD_BYTES):
        for parts, word in zip(
            gathered, exchange(payload[start : start + MAX_WORD_BYTES]), strict=True
        ):
            parts += word
    for rank, (length, parts) in enumerate(zip(lengths, gathered, strict=True)):
        if len(parts) != length:
            raise ProtocolError(
                ErrorCode.BAD_PAYLOAD,
                f"payload of rank {rank} has {len(parts)} bytes, not {length} as it has said",
            )
    return [bytes(parts) for parts in gathered]


def broadcast_payload(
    exchange: Exchange,
    payload: bytes,
    *,
    rank: int,
    root: int,
    limit_bytes: int = MAX_PAYLOAD_BYTES,
) -> bytes:
    """Block until all ranks have called this; returns the payload of rank `root`.

    Args:
        exchange: exchanges words, such as `Collective.gather`.
        payload: used on rank `root` only.
        rank: this rank.
        root: the rank whose payload is broadcast; equal on all ranks.
        limit_bytes: most bytes of the payload; equal on all ranks.

    Raises:
        LocalProtocolError, ProtocolError: as `gather_payloads`.
    """
    own = payload if rank == root else b""
    return gather_payloads(exchange, own, limit_bytes=limit_bytes)[root]


def _length(word: bytes, limit_bytes: int) -> int:
    if len(word) < _LENGTH.size:
        raise ProtocolError(ErrorCode.BAD_PAYLOAD, f"a payload begins with {len(word)} bytes")
    (length,) = _LENGTH.unpack_from(word)
    if length > limit_bytes:
        raise ProtocolError(
            ErrorCode.BAD_PAYLOAD, f"payload of {length} bytes exceeds {limit_bytes}"
        )
    return int(length)
