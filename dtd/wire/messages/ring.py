"""Rank and next rank (protocol.md, "Ring")."""

from __future__ import annotations

import enum
from typing import Final

from dtd.wire.fields import U8, U16, U32, U64
from dtd.wire.messages.registry import message

MAX_WORD_BYTES: Final = 32 * 1024


class Phase(enum.IntEnum):
    """The two halves of a ring all-reduce in segments, and the exchange of a small bucket."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1
    EXCHANGE = 2


@message(0x30)
class Chunk:
    """One chunk of one bucket on its way round the ring; the payload is its elements."""

    generation: U32
    step: U64
    phase: U8
    hop: U16
    bucket: U16
    chunk: U32
    source: U16


@message(0x31)
class Word:
    """One rank's small word on its way round the ring; the payload is the word."""

    generation: U32
    step: U64
    sequence: U32
    hop: U16
    origin: U16
    source: U16


@message(0x32)
class Beat:
    """Sent in both directions of a ring link at the heartbeat interval: this side is alive."""

    generation: U32


RingMessage = Chunk | Word | Beat
