"""Rank and next rank (protocol.md, "Ring")."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Final

from dtd.wire.fields import U8, U16, U32, U64, Generation, Octets, Text, list_of
from dtd.wire.messages.registry import Message, message

MAX_LENT: Final = 3072
"""Most buckets that one LEND can name: their offsets fit in a header, however large."""


class Phase(enum.IntEnum):
    """The two halves of a ring all-reduce in segments, and the exchange of a small bucket."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1
    EXCHANGE = 2


@message
class Chunk(Message):
    """One chunk of one bucket on its way round the ring; the payload is its elements.

    With a loan there is no payload: the elements lie in memory that the sender lends.
    """

    generation: Generation
    step: U64
    phase: U8
    hop: U16
    bucket: U16
    chunk: U32
    source: U16
    loan: U64 = 0


@message
class Word(Message):
    """One rank's small word on its way round the ring; the payload is the word."""

    generation: Generation
    step: U64
    sequence: U64
    hop: U16
    origin: U16
    source: U16


@message
class Beat(Message):
    """Sent in both directions of a ring link at the heartbeat interval: this side is alive."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """Where one bucket lies in lent memory: bytes from the file's beginning; 0, not there."""

    offset: U64


@message
class Lend(Message):
    """To a next rank on the same host: the file in which this process's buckets lie.

    `lots` has one entry for each bucket of a step, in their order.
    """

    generation: Generation
    number: U64
    nonce: Octets
    size_bytes: U64
    lots: Annotated[tuple[Lot, ...], list_of(Lot, MAX_LENT)]


@message
class Borrow(Message):
    """The next rank asks for the file of this LEND, by post to a socket of its own: its path."""

    generation: Generation
    number: U64
    socket: Text


@message
class Borrowed(Message):
    """The next rank can read what the LEND of this number names."""

    generation: Generation
    number: U64


@message
class Taken(Message):
    """The next rank has read all that it was lent of a bucket."""

    generation: Generation
    step: U64
    bucket: U16
